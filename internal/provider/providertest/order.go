package providertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// sampleInput is one sample as an input of the version rule.
type sampleInput struct {
	object string
	input  versioning.Input
}

// AnyOrder applies the samples in any order, with copies. Each object must end unambiguously in the
// state of its last sample; the samples are listed in the order in which they happened. A partial
// event makes a refetch pending and changes no state.
func AnyOrder(t *testing.T, s Suite) {
	t.Helper()
	var story []sampleInput
	want, pending := map[string]versioning.State{}, map[string]bool{}
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
			story = append(story, sampleInput{object, in})
			if in.Partial == "" {
				want[object] = in.State
			} else {
				pending[object] = true
			}
		}
	}
	if len(story) == 0 {
		t.Fatal("the samples are about no object")
	}
	rapid.Check(t, func(t *rapid.T) {
		order := append(rapid.Permutation(story).Draw(t, "order"),
			rapid.SliceOfN(rapid.SampledFrom(story), 0, 10).Draw(t, "again")...)
		rows := applyAll(order)
		for object, state := range want {
			row := rows[object]
			if row.State.Hash != state.Hash || row.State.Deleted != state.Deleted || row.Ambiguous ||
				row.RefetchAfter != 0 && !pending[object] {
				t.Fatalf("%s ends differently:\n%s", object, cmp.Diff(state, row.State))
			}
		}
	})
}

// CheckEnd applies inputs of one object in any order, with copies. The row must end unambiguously
// in the state of the last input. If the parameter ambiguous is true, it must be ambiguous instead.
func CheckEnd(t *testing.T, inputs []versioning.Input, ambiguous bool) {
	t.Helper()
	last := inputs[len(inputs)-1].State
	rapid.Check(t, func(t *rapid.T) {
		order := append(rapid.Permutation(inputs).Draw(t, "order"),
			rapid.SliceOfN(rapid.SampledFrom(inputs), 0, 3).Draw(t, "again")...)
		row := versioning.NewRow()
		for _, in := range order {
			versioning.Apply(&row, in)
		}
		if row.Ambiguous != ambiguous || row.Ambiguous && row.RefetchAfter == 0 || !ambiguous &&
			row.State.Hash != last.Hash {
			t.Fatalf("ends as %s, ambiguous %v; want %s, %v", row.State.JSON, row.Ambiguous, last.JSON, ambiguous)
		}
	})
}

func input(t *testing.T, sampleType string, o provider.Observation) versioning.Input {
	t.Helper()
	in, err := versioning.InputFromObservation(o, now)
	if err != nil {
		t.Fatalf("version of %s: %v", sampleType, err)
	}
	return in
}

func applyAll(order []sampleInput) map[string]*versioning.Row {
	rows := map[string]*versioning.Row{}
	for _, e := range order {
		row := rows[e.object]
		if row == nil {
			created := versioning.NewRow()
			row = &created
			rows[e.object] = row
		}
		versioning.Apply(row, e.input)
	}
	return rows
}
