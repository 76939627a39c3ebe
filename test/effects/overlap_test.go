package effects_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// applied are the first n events without those that were missed.
func (w *world) applied(n int, missed []int64) []int64 {
	return slices.Sorted(slices.Values(slices.DeleteFunc(slices.Clone(w.ids[:n]), func(id int64) bool { return slices.Contains(missed, id) })))
}

// overlap has two replays go over events at the same moment, while these are delivered. Where all of them were applied nothing changes, and nothing follows, whoever is first; what was missed follows once, by whoever is first.
func (w *world) overlap(ids []int64, missed bool, r *rand.Rand) {
	w.t.Helper()
	if len(ids) == 0 {
		return
	}
	hold, err := w.log.DB.Pool.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = hold.Rollback(context.WithoutCancel(w.t.Context())) }()
	if _, err := hold.Exec(w.t.Context(), `LOCK TABLE outcomes IN SHARE MODE`); err != nil { // which both write
		w.t.Fatal(err)
	}
	var both []int64
	for range 2 {
		some := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return !missed && id != ids[len(ids)-1] && r.IntN(4) == 0 }) // what was missed all apply in one order
		run, err := runs.Ask(w.t.Context(), w.log.Operator, runs.Order{Job: replay.Job, Asked: replay.Order{Mode: replay.Missing, Filter: events.Filter{IDs: some}}})
		if err != nil {
			w.t.Fatal(err)
		}
		both = append(both, run)
	}
	testkit.Eventually(w.t, *patience, func() error {
		// One that has come to an object has the other wait for that.
		if n := w.log.DB.Rows(w.t, `SELECT count(DISTINCT pid)::text FROM pg_locks WHERE NOT granted AND (relation = 'outcomes'::regclass OR $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) OR $1 AND locktype = 'transactionid')`, missed)[0]; n < "2" {
			return fmt.Errorf("%s of two replays have come to their events", n)
		}
		return nil
	})
	var again sync.WaitGroup
	again.Go(func() {
		if _, err := w.processor(immortal()).ApplyStored(w.t.Context(), processor.Target{}, ids, false); err != nil {
			w.t.Error(err)
		}
	})
	if err := hold.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	again.Wait()
	for _, run := range both {
		w.log.Until(w.t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
	}
	changes, before := w.model.changes, maps.Clone(w.model.effects)
	for _, id := range ids {
		w.model.read(w.t, 0, true, id, w.bodies[id])
	}
	if missed {
		w.first(before, both)
	} else if w.model.changes != changes {
		w.t.Fatal("the model knows of changes by events that were applied before")
	}
	w.planned()
}

// first has the model know which replays have planned what was not there before: any may, or the delivery.
func (w *world) first(before map[name]wanted, replays []int64) {
	w.t.Helper()
	for _, e := range w.ledger() {
		as := name{e.rule, e.key, e.version}
		want, known := w.model.effects[as]
		if _, was := before[as]; known && !was && slices.Contains(replays, e.run) {
			want.run = e.run
			w.model.effects[as] = want
		}
	}
	w.t.Logf("%d effects of what two replays and a delivery met at once", len(w.model.effects)-len(before))
}
