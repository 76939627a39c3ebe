package retention_test

import (
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
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
	b := &testBundle{db: testkit.Database(t), now: time.Now().UTC()}
	b.pool, b.operator, b.maintainer = b.db.Role(t, "processor"), b.db.Role(t, "operator"), b.db.Role(t, "maintenance")
	known, err := events.RegisterSources(t.Context(), b.pool, map[string]string{"sim": "sim"})
	if err != nil {
		t.Fatal(err)
	}
	b.source = known.Number["sim"]
	b.proc = b.processor(t, "sim")
	r := rand.New(rand.NewPCG(9, 1))
	h := sim.Generate(r, sim.Options{Objects: 20, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70, Twins: 20, Deletes: 15, Partial: 5})
	r.Shuffle(len(h.Events), func(i, j int) { h.Events[i], h.Events[j] = h.Events[j], h.Events[i] })
	const days = 5
	var run int64
	for day := range days {
		b.clock(t, days-1-day)
		var part []sim.Event
		for i := day; i < len(h.Events); i += days {
			part = append(part, h.Events[i])
		}
		b.days = append(b.days, b.append(t, day, part))
		b.apply(t, b.days[day])
		if day == 1 {
			if run, err = rebuild.Ask(t.Context(), b.operator, &rebuild.Order{Source: b.source}, "me", "", 0); err != nil {
				t.Fatal(err)
			}
			if status := b.rebuilt(t); status != runs.Paused {
				t.Fatalf("the rebuild is %s", status)
			}
		}
	}
	b.audited(t, b.days[days-1][len(b.days[days-1])-1])
	before := b.rows(t, same("objects"))
	b.ask(t, retention.Policy{Bodies: 1})
	if _, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), "run 1 (rebuild, paused) has yet to read it") {
		t.Errorf("retention: %v", err)
	}
	if n, gone := len(b.stored(t)), len(b.days[0]); n != len(h.Events)-gone {
		t.Errorf("%d events are left of %d, %d of them of a day that the rebuild has read", n, len(h.Events), gone)
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
