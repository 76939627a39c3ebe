package reconcile_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// changes is until when the changes of the type are proven.
func (b *world) changes(t *testing.T) time.Time {
	t.Helper()
	_, until, err := reconcile.Watermark(t.Context(), b.Pool, b.Source, "", "changes thing")
	if err != nil {
		t.Fatal(err)
	}
	return until
}

// What changed is asked for from before what is proven, by the overlap and by how late the list may be: what changed then may not have been in it.
func TestChangesAreAskedForFromBefore(t *testing.T) {
	t.Parallel()
	for version, lag := range map[string]time.Duration{sim.ByChange: 0, sim.ByChange + "," + sim.Late: sim.ListLag} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 241, living)
			b.api.version = version
			b.Carry(t, "one", 1, b.jobs())
			b.sweep(t, reconcile.Order{})
			var mu sync.Mutex
			var since int64
			b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if c.Path == "/list" {
					since, _ = strconv.ParseInt(c.Query.Get("since"), 10, 64)
				}
				return nil, nil
			})
			proven := b.changes(t)
			b.api.set(b.api.Now().Add(time.Hour))
			b.sweep(t, reconcile.Order{})
			mu.Lock()
			defer mu.Unlock()
			if from, want := time.UnixMicro(since).UTC(), proven.Add(-b.runner().Settings.Overlap-lag); proven.IsZero() || !from.Equal(want) {
				t.Errorf("asked from %s, want %s: proven until %s", from, want, proven)
			}
		})
	}
}

// Changes of a time that does not touch what is proven prove nothing of what lies between.
func TestAGapOfChangesIsNotProven(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 242, living)
	b.api.version = sim.ByChange
	b.Carry(t, "one", 1, b.jobs())
	b.sweep(t, reconcile.Order{})
	proven := b.changes(t)
	b.api.set(b.api.Now().Add(3 * time.Hour))
	b.sweep(t, reconcile.Order{Since: proven.Add(time.Hour), Until: proven.Add(2 * time.Hour)})
	if until := b.changes(t); proven.IsZero() || !until.Equal(proven) {
		t.Errorf("proven until %s, and nobody has asked for the hour after %s", until, proven)
	}
	b.sweep(t, reconcile.Order{Since: proven, Until: proven.Add(2 * time.Hour)})
	if until := b.changes(t); !until.Equal(proven.Add(2 * time.Hour)) {
		t.Errorf("proven until %s, though all was asked for from %s until two hours later", until, proven)
	}
}
