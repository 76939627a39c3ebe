package processor_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// lively has objects that change several times a second, each change told with what was before, and received up to a second late.
var lively = sim.Options{Objects: 1000, Changes: 8, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100, Late: 1_000_000}

// waiting is a processor whose source's API reads all objects but one.
func (b *testBundle) waiting(t *testing.T) *processor.Processor {
	t.Helper()
	p := b.processor(t, sim.Provider{}, nil)
	p.Replace(map[string]processor.Source{"sim": {Number: b.source, Config: &provider.Source{Name: "sim"}, Provider: sim.Provider{}, Stragglers: time.Minute,
		Reads: func(_, _, id string) bool { return id != "obj_1000" }}})
	return p
}

// received are the events of a history in the order in which they were received.
func received(h *sim.History) (all []stream.Event) {
	for i, e := range h.Events {
		all = append(all, message(i, e))
	}
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	return all
}

// apply applies events in their order, in batches.
func apply(t *testing.T, p *processor.Processor, all []stream.Event) {
	t.Helper()
	for some := range slices.Chunk(all, 37) {
		if err := p.Apply(t.Context(), events.LiveRun, some); err != nil {
			t.Fatal(err)
		}
	}
}

// What comes in another order and is not lost leaves hardly a reason to look.
func TestReorderedIsNotLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := received(sim.Generate(rand.New(rand.NewPCG(1, 41)), lively))
	apply(t, b.waiting(t), all)
	var late, hints int
	b.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'stale'`, &late)
	b.scan(t, `SELECT count(*) FROM hints`, &hints)
	if t.Logf("%d events of 1000 objects, %d of them behind a newer one: %d hints are left", len(all), late, hints); late < 500 || hints > 10 {
		t.Errorf("%d late, %d hints", late, hints)
	}
}

// What is lost leaves a reason to look, where the API reads the object, and a look ends it.
func TestLostLeavesAHint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(2, 41)), lively)
	lost := map[string]bool{} // objects
	var all []stream.Event
	for i, e := range h.Events {
		of := h.Of(e.Object)
		if middle := len(of) / 2; len(of) >= 3 && of[middle].Key == e.Key && (len(lost) < 100 || e.Object == "obj_1000") {
			lost[e.Object] = true
			continue
		}
		all = append(all, message(i, e))
	}
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	p := b.waiting(t)
	apply(t, p, all)
	waiting := b.db.Rows(t, `SELECT object_id FROM hints WHERE gaps IS NOT NULL AND reason = 'a change does not fit' AND due > made_at + interval '30 seconds' AND after = 0`)
	found := 0
	for _, id := range waiting {
		if lost[id] {
			found++
		}
	}
	t.Logf("%d objects lost an event, %d hints for them, %d for others", len(lost), found, len(waiting)-found)
	if found < 90 || len(waiting)-found > 10 || slices.Contains(waiting, "obj_1000") {
		t.Errorf("%d hints for %d objects that lost an event, %d in all", found, len(lost), len(waiting))
	}
	for i, id := range waiting {
		if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{lookAt(t, h, id, time.Minute, 10_000+i)}); err != nil {
			t.Fatal(err)
		}
	}
	if left := b.db.Rows(t, `SELECT object_id FROM hints`); len(left) > 0 {
		t.Errorf("after looks %d hints are left", len(left))
	}
}
