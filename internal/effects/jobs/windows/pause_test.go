package windows_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
)

// After a page of a window that has just ended there is a pause, here of up to an hour. Pages of a
// window that ended long ago, and of deferred objects, have none.
func TestTick_pages_pauseOnlyWithTime(t *testing.T) {
	t.Parallel()
	const objects, page = 20, 2
	for _, one := range []struct {
		name, at string
		until    time.Duration
		deferred bool
		planned  int
	}{
		{"new window", "02:04", 5 * time.Minute, false, page},
		{"older window", "02:06", 5 * time.Minute, false, objects},
		{"window in the first half of the interval", "02:29", time.Hour, false, page},
		{"window in the second half of the interval", "02:31", time.Hour, false, objects},
		{"deferred objects", "02:04", 5 * time.Minute, true, objects},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.setClock(t, "01:30")
			put := func(is string) {
				for n := range objects {
					b.putObject(t, fmt.Sprintf("in_%02d", n), `{"n": 1}`, is)
				}
			}
			each := rule(t, keyPerWindow, "", 0)
			unpaused := b.newScheduler(objects, each)
			tick(t, unpaused)
			b.setClock(t, one.at)
			if one.deferred {
				put("ambiguous")
				tick(t, unpaused)
			}
			put("certain")
			s := windows.DefaultSettings
			s.Every, s.PageObjects, s.TxTimeout = time.Hour, page, time.Minute
			s.PauseFactor, s.PausedAge = 1_000_000, one.until
			a := windows.New(windows.Options{Pool: b.pool, Settings: s, Logger: slog.New(slog.DiscardHandler)})
			a.Replace(effects.NewRules([]*rules.Rule{each}))
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() { done <- a.Tick(ctx) }()
			testkit.Eventually(t, time.Minute, func() error {
				if n := len(b.planned(t)); n < one.planned {
					return fmt.Errorf("%d effects are planned, want %d", n, one.planned)
				}
				return nil
			})
			if one.planned == page {
				stop()
			}
			must(t, <-done)
			if n := len(b.planned(t)); n != one.planned {
				t.Errorf("%d effects are planned, want %d", n, one.planned)
			}
		})
	}
}
