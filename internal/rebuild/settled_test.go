package rebuild_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// unmeant is a final delete of the latest time that is let in, which nobody meant.
func unmeant(r *rand.Rand, id string) sim.Event {
	received := sim.Start + r.Int64N(6_000_000)
	return sim.Event{Object: id, ReceivedAt: time.UnixMicro(received).UTC(), Body: fmt.Appendf(nil,
		`{"object_id": %q, "type": "thing.deleted", "deleted": true, "final": true, "unit": 1, "rank": 1, "time": %d}`, id, received+3_000_000_000)}
}

// settle appends looks of any moment; the even ones settle objects.
func (b *testBundle) settle(t *testing.T, r *rand.Rand, h *sim.History) (ids []int64) {
	t.Helper()
	for i, id := range h.ObjectIDs() {
		for n := range r.IntN(5) {
			asked := sim.Look{Began: sim.Start + r.Int64N(8_000_000), Elapsed: 300_000, Settles: n%2 == 0}
			if !asked.Settles {
				asked.Began += r.Int64N(4_000_000_000) // behind what is unmeant too, so that it is refused
			}
			ids = append(ids, b.looked(t, h, id, fmt.Sprint("settle:", i, n), asked))
		}
	}
	return ids
}

// looked appends a look.
func (b *testBundle) looked(t *testing.T, h *sim.History, id, key string, asked sim.Look) int64 {
	t.Helper()
	l := h.Answer(id, asked)
	body, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: b.source, ReceivedAt: time.UnixMicro(asked.Began).UTC().Add(l.Elapsed), Origin: events.OriginReconcile,
		Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body, Events: []provider.Event{{Key: key, Type: provider.LookType,
			ObjectType: "thing", ObjectID: id, Fingerprint: provider.BodyFingerprint(body)}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.ids = append(b.ids, receipts[0][0].ID)
	return receipts[0][0].ID
}

// foldedInParts has the log folded into the bases in parts, in its order, and makes the objects anew from them and the parts that are left.
func (b *testBundle) foldedInParts(t *testing.T, r *rand.Rand, ids []int64, live []string) {
	t.Helper()
	ids = slices.Sorted(slices.Values(ids))
	p := b.processor(t, nil)
	for run := int64(600); len(ids) > 0; run++ {
		n := min(len(ids), 1+r.IntN(100))
		if _, err := p.Fold(t.Context(), ids[:n]); err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
		b.exec(t, `INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE
			VALUES ($1, 'rebuild', '{}', '', '', 'cancelled', '', '{}', now(), now(), now())`, run)
		b.exec(t, `TRUNCATE staged`)
		b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
		if _, err := p.ApplyStored(t.Context(), processor.Target{Run: run, Into: versioning.Staged}, ids, false); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(live, b.table(t, object, "staged")); diff != "" {
			t.Fatalf("live, and made of bases and the last %d events: %s", len(ids), diff)
		}
	}
	if diff := cmp.Diff(live, b.table(t, object, "bases")); diff != "" {
		t.Errorf("live, and bases: %s", diff)
	}
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
			b.foldedInParts(t, r, ids, live)
			b.exec(t, `TRUNCATE bases, staged`)
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
			// Seen: a look that came before a final delete live may come after it here, and is refused.
			b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true, Seen: true}), done)
			if diff := cmp.Diff(live, b.table(t, object, "objects")); diff != "" {
				t.Errorf("swapped: %s", diff)
			}
		})
	}
}
