package processor_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// kinds are providers of different habits.
var kinds = map[string]sim.Options{
	"event time":  {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5, Twins: 20, Late: 5_000_000},
	"own version": {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 900_000, Own: true, Deletes: 15, Final: true, Timeless: true, Twins: 10, Late: 5_000_000, Noise: true},
	"integers":    {Objects: 6, Changes: 8, Contents: 3, Unit: 1_000_000, Gap: 500_000, Own: true, Integer: true, Twins: 10},
	"ids reused":  {Objects: 6, Changes: 10, Contents: 3, Unit: 1_000_000, Gap: 900_000, Deletes: 30, ChangeSets: 40, Twins: 20},
	"steps":       {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, Frozen: true, Steps: true, ChangeSets: 50, Deletes: 10, Final: true, Skew: 400_000},
}

// Whatever the order, doubling and batching, and however many processors at once, the mirror is what the pure rule makes of the events.
func TestAnyOrderEndsInTheSameObjects(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(6) {
				b := setup(t)
				h := sim.Generate(rand.New(rand.NewPCG(seed, 1)), options)
				b.applyShuffled(t, h, rand.New(rand.NewPCG(seed, 2)))
				b.compare(t, h, fmt.Sprint("seed ", seed))
			}
		})
	}
}

// applyShuffled applies a history in any order, every event once or several times, in batches by three processors.
func (b *testBundle) applyShuffled(t *testing.T, h *sim.History, r *rand.Rand) {
	t.Helper()
	var all []stream.Event
	for i, e := range h.Events {
		for range 1 + r.IntN(2) {
			all = append(all, message(i, e))
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	work := make(chan []stream.Event, len(all))
	for len(all) > 0 {
		n := min(1+r.IntN(12), len(all))
		work <- all[:n:n]
		all = all[n:]
	}
	close(work)
	var wg sync.WaitGroup
	for range 3 {
		p := b.processor(t, sim.Provider{}, nil)
		wg.Go(func() {
			for batch := range work {
				if err := p.Apply(t.Context(), events.LiveRun, batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// same are the parts of a row that may not depend on arrival.
var same = cmp.Options{
	cmpopts.IgnoreFields(versioning.Row{}, "LookAfter"),
	cmpopts.IgnoreFields(versioning.State{}, "JSON"), // jsonb writes it its own way; Exact covers it
}

func (b *testBundle) compare(t *testing.T, h *sim.History, label string) {
	t.Helper()
	for _, id := range h.ObjectIDs() {
		want := versioning.NewRow()
		for i, e := range h.Events {
			if e.Object != id {
				continue
			}
			m := message(i, e)
			obs, err := (sim.Provider{}).Observe(nil, &m.Stored)
			if err != nil {
				t.Fatal(err)
			}
			in, err := versioning.FromObservation(obs, m.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			versioning.Apply(&want, in)
		}
		got := b.object(t, id)
		if diff := cmp.Diff(want, got.Row, same); diff != "" {
			t.Errorf("%s: object %s (-pure rule +database):\n%s", label, id, diff)
		}
		if !want.Ambiguous && want.LookAfter == 0 && want.State.Hash != h.Truth(id).Hash && !allPartial(h, id) {
			t.Errorf("%s: object %s is wrong and nothing says so", label, id)
		}
	}
	var without, objects, changes int
	b.scan(t, `SELECT count(*) FROM outcomes`, &without)
	if without != len(h.Events) {
		t.Errorf("%s: %d outcomes of %d events", label, without, len(h.Events))
	}
	b.scan(t, `SELECT coalesce(sum(revision), 0) FROM objects`, &objects)
	b.scan(t, `SELECT coalesce(sum(cardinality(ids)), 0) FROM outbox`, &changes)
	if objects != changes {
		t.Errorf("%s: revisions grew %d times and left %d changes", label, objects, changes)
	}
}

// allPartial: nothing but hints came of the object's last change.
func allPartial(h *sim.History, id string) bool {
	evs := h.Of(id)
	return evs[len(evs)-1].Partial
}

// Versions compare in SQL as they do in Go.
func TestVersionOrderIsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := rand.New(rand.NewPCG(7, 7))
	pick := func() versioning.Version {
		at := []int64{-1 << 63, -5, 0, 1, 1_700_000_000_000_000, 1<<63 - 1}
		return versioning.Version{Final: r.IntN(2) == 0, At: at[r.IntN(len(at))], Seen: at[2+r.IntN(4)], Rank: int16(r.IntN(3))}
	}
	for range 500 {
		v, w := pick(), pick()
		var less, equal bool
		err := b.db.Pool.QueryRow(t.Context(), `SELECT ($1::bool, $2::bigint, $3::bigint, $4::smallint) < ($5::bool, $6::bigint, $7::bigint, $8::smallint),
			($1::bool, $2::bigint, $3::bigint, $4::smallint) = ($5::bool, $6::bigint, $7::bigint, $8::smallint)`,
			v.Final, v.At, v.Seen, v.Rank, w.Final, w.At, w.Seen, w.Rank).Scan(&less, &equal)
		if c := v.Compare(w); err != nil || less != (c < 0) || equal != (c == 0) {
			t.Fatalf("%+v and %+v: Go says %d, SQL less=%v equal=%v (%v)", v, w, c, less, equal, err)
		}
	}
}

// The statement that writes enforces the rule again: a stale write from a reader that lost its lock changes nothing.
func TestSaveRefusesToGoBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	h := sim.Generate(rand.New(rand.NewPCG(1, 1)), sim.Options{Objects: 1, Changes: 1, Contents: 2, Unit: 1, Gap: 10})
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{message(0, h.Events[0])}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*versioning.Object){
		"a lower version":    func(o *versioning.Object) { o.Version.At-- },
		"an older revision":  func(o *versioning.Object) { o.Revision -= 2 },
		"a skipped revision": func(o *versioning.Object) { o.Revision++ },
	} {
		o := b.object(t, "obj_1")
		change(o)
		tx, err := b.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := versioning.Save(t.Context(), tx, versioning.Mirror, []*versioning.Object{o}); err == nil {
			t.Errorf("%s was written", name)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// moody is a provider whose events panic, fail or die by their key.
type moody struct{ sim.Provider }

func (moody) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	switch e.Key {
	case "panics":
		panic("no such luck")
	case "fails":
		return provider.Observation{}, fmt.Errorf("not today")
	case "dead":
		return provider.Observation{}, &provider.Dead{Reason: "cannot be read"}
	case "ignored":
		return provider.Observation{Ignored: "a notice"}, nil
	case "longid":
		o, err := sim.Provider{}.Observe(src, e)
		o.ObjectID = string(make([]byte, 600))
		return o, err
	}
	return sim.Provider{}.Observe(src, e)
}
