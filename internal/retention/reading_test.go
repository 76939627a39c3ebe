package retention_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// rebuilt has the open rebuild go on until it rests or is done.
func (b *testBundle) rebuilt(t *testing.T) runs.Status {
	t.Helper()
	h, err := runs.Take(t.Context(), b.pool, "rebuilding", time.Minute, rebuild.Job)
	if err != nil || h == nil {
		t.Fatalf("no rebuild is taken: %v", err)
	}
	rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.proc, Settings: rebuild.DefaultSettings}
	status, err := rebuilds.Carry(t.Context(), h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	return status
}

// A rebuild that rests will read all that comes above its bound before it swaps, so those days stay; what it has read may go.
func TestRestingRebuildHoldsWhatItHasNotRead(t *testing.T) {
	t.Parallel()
	var run int64
	b := setupDays(t, 9, 5, 20, func(b *testBundle, day int) {
		if day != 1 {
			return
		}
		var err error
		if run, err = rebuild.Ask(t.Context(), b.operator, &rebuild.Order{Source: b.source}, "me", "", 0); err != nil {
			t.Fatal(err)
		}
		if status := b.rebuilt(t); status != runs.Paused {
			t.Fatalf("the rebuild is %s", status)
		}
	})
	all := len(b.stored(t))
	before := b.rows(t, same("objects"))
	b.ask(t, retention.Policy{Bodies: 1})
	if _, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), "run 1 (rebuild, paused) has yet to read it") {
		t.Errorf("retention: %v", err)
	}
	if n, gone := len(b.stored(t)), len(b.days[0]); n != all-gone {
		t.Errorf("%d events are left of %d, %d of them of a day that the rebuild has read", n, all, gone)
	}
	if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
		t.Fatal(err)
	}
	if status := b.rebuilt(t); status != runs.Done {
		t.Errorf("the rebuild is %s", status)
	}
	if diff := cmp.Diff(before, b.rows(t, same("objects"))); diff != "" {
		t.Errorf("a swap without a change of the rule changed the mirror: %s", diff)
	}
}
