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

// After a page of a window that has just ended there is a pause, here of hours. A window that ended
// long ago is evaluated without pauses.
func TestTick_pages_pauseUnlessLate(t *testing.T) {
	t.Parallel()
	const objects, page = 20, 2
	for _, one := range []struct {
		at      string
		planned int
	}{{"02:04", page}, {"02:06", objects}} {
		t.Run(one.at, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.setClock(t, "01:30")
			for n := range objects {
				b.putObject(t, fmt.Sprintf("in_%02d", n), `{"n": 1}`, "certain")
			}
			s := windows.DefaultSettings
			s.Every, s.PageObjects, s.TxTimeout, s.PauseFactor = time.Hour, page, time.Minute, 1_000_000
			a := windows.New(windows.Options{Pool: b.pool, Settings: s, Logger: slog.New(slog.DiscardHandler)})
			a.Replace(effects.NewRules([]*rules.Rule{rule(t, keyPerWindow, "", 0)}))
			tick(t, a)
			b.setClock(t, one.at)
			ctx, stop := context.WithCancel(t.Context())
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
			stop()
			if n := len(b.planned(t)); n != one.planned {
				t.Errorf("%d effects are planned, want %d", n, one.planned)
			}
		})
	}
}
