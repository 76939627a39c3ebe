package providertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// said is one sample in the terms of the version rule.
type said struct {
	object string
	input  versioning.Input
}

// AnyOrder plays the samples through the version rule in any order and with doubles: each object ends the same, sure of
// itself, as the last of its samples says, since the samples are listed in the order in which they happened. Partial events owe
// a look, and change no state.
func AnyOrder(t *testing.T, s Suite) {
	t.Helper()
	var story []said
	want, owed := map[string]versioning.State{}, map[string]bool{}
	for _, sample := range s.Provider.Samples() {
		for _, each := range s.ObservedAll(t, s.Deliver(t, s.Source, sample)) {
			o := each.Observation
			if each.Err != nil {
				t.Fatalf("observe %s: %v", sample.Type, each.Err)
			}
			if o.Ignored != "" {
				continue
			}
			in := input(t, sample.Type, o)
			object := o.Account + " " + o.ObjectType + " " + o.ObjectID
			story = append(story, said{object, in})
			if in.Partial == "" {
				want[object] = in.State
			} else {
				owed[object] = true
			}
		}
	}
	if len(story) == 0 {
		t.Fatal("the samples say nothing of any object")
	}
	rapid.Check(t, func(t *rapid.T) {
		order := append(rapid.Permutation(story).Draw(t, "order"), rapid.SliceOfN(rapid.SampledFrom(story), 0, 10).Draw(t, "again")...)
		rows := play(order)
		for object, state := range want {
			row := rows[object]
			if row.State.Hash != state.Hash || row.State.Deleted != state.Deleted || row.Ambiguous || row.LookAfter != 0 && !owed[object] {
				t.Fatalf("%s ends otherwise:\n%s", object, cmp.Diff(state, row.State))
			}
		}
	})
}

// Ends plays inputs of one object in any order and with doubles. The row ends as the last input says, and is sure of it,
// unless it must be ambiguous.
func Ends(t *testing.T, inputs []versioning.Input, ambiguous bool) {
	t.Helper()
	last := inputs[len(inputs)-1].State
	rapid.Check(t, func(t *rapid.T) {
		order := append(rapid.Permutation(inputs).Draw(t, "order"), rapid.SliceOfN(rapid.SampledFrom(inputs), 0, 3).Draw(t, "again")...)
		row := versioning.NewRow()
		for _, in := range order {
			versioning.Apply(&row, in)
		}
		if row.Ambiguous != ambiguous || row.Ambiguous && row.LookAfter == 0 || !ambiguous && row.State.Hash != last.Hash {
			t.Fatalf("ends as %s, ambiguous %v; want %s, %v", row.State.JSON, row.Ambiguous, last.JSON, ambiguous)
		}
	})
}

func input(t *testing.T, sampleType string, o provider.Observation) versioning.Input {
	t.Helper()
	in, err := versioning.FromObservation(o, now)
	if err != nil {
		t.Fatalf("version of %s: %v", sampleType, err)
	}
	return in
}

func play(order []said) map[string]*versioning.Row {
	rows := map[string]*versioning.Row{}
	for _, e := range order {
		row := rows[e.object]
		if row == nil {
			fresh := versioning.NewRow()
			row = &fresh
			rows[e.object] = row
		}
		versioning.Apply(row, e.input)
	}
	return rows
}
