package rebuild_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// unmeant is a final delete of the latest time that is let in, which nobody meant.
func unmeant(r *rand.Rand, id string) sim.Event {
	received := sim.Start + r.Int64N(6_000_000)
	return sim.Event{Object: id, ReceivedAt: time.UnixMicro(received).UTC(), Body: fmt.Appendf(nil,
		`{"object_id": %q, "type": "thing.deleted", "deleted": true, "final": true, "unit": 1, "rank": 1, "time": %d}`, id, received+3_000_000_000)}
}

// settle appends looks of any moment that settle objects.
func (b *testBundle) settle(t *testing.T, r *rand.Rand, h *sim.History) (ids []int64) {
	t.Helper()
	for i, id := range h.ObjectIDs() {
		for n := range r.IntN(3) {
			l := h.Answer(id, sim.Look{Began: sim.Start + r.Int64N(8_000_000), Elapsed: 300_000, Settles: true})
			body, err := l.Encode()
			if err != nil {
				t.Fatal(err)
			}
			receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: b.source, ReceivedAt: l.Settles.Before.Add(l.Elapsed), Origin: events.OriginReconcile,
				Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body, Events: []provider.Event{{Key: fmt.Sprint("settle:", i, n), Type: provider.LookType,
					ObjectType: "thing", ObjectID: id, Fingerprint: provider.BodyFingerprint(body)}}}})
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, receipts[0][0].ID)
		}
	}
	b.ids = append(b.ids, ids...)
	return ids
}

// Objects that persons had settled are made anew as they are, whatever the order was in which their events came, and so are their bases.
func TestSettledObjectsAreMadeAnew(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 31)
			b := setup(t)
			h := sim.Generate(r, options)
			evs := h.Events
			for _, id := range h.ObjectIDs() {
				if r.IntN(2) == 0 {
					evs = append(evs, unmeant(r, id))
				}
			}
			r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
			ids := b.append(t, r, b.source, evs[:len(evs)/2])
			ids = append(ids, b.settle(t, r, h)...)
			ids = append(ids, b.append(t, r, b.source, evs[len(evs)/2:])...)
			b.live(t, r, ids)
			live := b.table(t, object, "objects")
			if n := b.number(t, `SELECT count(*) FROM objects WHERE settled <> 0`); n == 0 {
				t.Fatal("no object was settled")
			}
			if diff := cmp.Diff(live, b.fold(t, nil, 500)); diff != "" {
				t.Errorf("live, and in the order of the log: %s", diff)
			}
			if _, err := b.processor(t, nil).Fold(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(live, b.table(t, object, "bases")); diff != "" {
				t.Errorf("live, and bases: %s", diff)
			}
			b.exec(t, `TRUNCATE bases`)
			b.start(t, "one", nil, quick())
			run := b.ask(t, rebuild.Order{Source: b.source})
			b.until(t, run, staged)
			if diff := cmp.Diff(live, b.table(t, object, "staged")); diff != "" {
				t.Errorf("live and staged: %s", diff)
			}
			if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
				t.Fatal(err)
			}
			if ended := b.until(t, run, done); ended.Counts[rebuild.Swapped] != 0 {
				t.Errorf("%v", ended.Counts)
			}
			b.exec(t, `UPDATE objects SET settled = 0, rule_version = 0 WHERE settled <> 0`) // as if they had been overlooked
			b.rebuilt(t, b.source)
			if diff := cmp.Diff(live, b.table(t, object, "objects")); diff != "" {
				t.Errorf("swapped: %s", diff)
			}
		})
	}
}
