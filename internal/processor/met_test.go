package processor_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// inPart reads some events as partial ones.
type inPart struct {
	sim.Provider
	ids map[int64]bool
}

func (p inPart) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	o, err := p.Provider.Observe(src, e)
	if p.ids[e.ID] {
		o.Partial = "only the id"
	}
	return o, err
}

// An old partial event that is applied again owes no look that a later event had made needless, and a later whole one does not clear what is owed; but where the row was
// lost and made again, what they say is new.
func TestReplayLeavesLooksAsTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(7, 3)), sim.Options{Objects: 1, Changes: 40, Contents: 5, Unit: 1, Gap: 20})
	n := len(h.Events)
	at := func(i int) stream.Event { return message(i, h.Events[i]) }
	whole, part, last, late := at(0), at(n/3), at(2*n/3), at(n-1)
	id := h.ObjectIDs()[0]
	p := b.processor(t, inPart{ids: map[int64]bool{part.ID: true, late.ID: true}}, nil)
	apply := func(run int64, evs ...stream.Event) {
		t.Helper()
		for _, e := range evs {
			if err := p.Apply(t.Context(), run, []stream.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(0, whole, part)
	if o := b.object(t, id); o.LookAfter == 0 {
		t.Fatalf("%+v", o)
	}
	apply(0, last)
	settled := b.object(t, id)
	if settled.LookAfter != 0 {
		t.Fatalf("%+v", settled)
	}
	apply(1, whole, last, part)
	if diff := cmp.Diff(settled.Row, b.object(t, id).Row); diff != "" {
		t.Errorf("settled: %s", diff)
	}
	apply(0, late)
	owed := b.object(t, id)
	if owed.LookAfter == 0 {
		t.Fatal("no look is owed")
	}
	apply(2, late, part, last)
	if diff := cmp.Diff(owed.Row, b.object(t, id).Row); diff != "" {
		t.Errorf("owed: %s", diff)
	}
	if _, err := b.db.Pool.Exec(t.Context(), `DELETE FROM objects`); err != nil {
		t.Fatal(err)
	}
	apply(3, last, late, part)
	if got := b.object(t, id); got.LookAfter != owed.LookAfter || got.State.Exact != owed.State.Exact {
		t.Errorf("made again: %+v, want %+v", got.Row, owed.Row)
	}
}
