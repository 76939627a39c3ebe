package versioning_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestCounterLessOnSeconds(t *testing.T) {
	t.Parallel()
	a, b := whole(10, "A"), whole(10, "B")
	wantWrong(t, keep(newer, a, b), "A") // B is lost
	wantDoubt(t, rule(t, a, b))
	wantSure(t, rule(t, change(10, "X", "A"), change(10, "A", "B")), "B")
}

func TestCounterLessOrEqualOnSeconds(t *testing.T) {
	t.Parallel()
	a, b := change(10, "X", "A"), change(10, "A", "B")
	wantWrong(t, keep(newerOrSame, a, b, a), "A") // the second A is the first under another key
	wantSure(t, rule(t, a, b, a), "B")
}

func TestCounterRankByWord(t *testing.T) {
	t.Parallel()
	canceled, noted := whole(10, "canceled"), change(10, "canceled", "canceled, with a note")
	word := map[string]int{"canceled": 2, "canceled, with a note": 1} // "deleted" outranks "updated"
	byWord := func(stored, in provider.Observation) bool {
		return stored.At < in.At || stored.At == in.At && word[name(stored)] < word[name(in)]
	}
	wantWrong(t, keep(byWord, canceled, noted), "canceled") // the update is hidden
	wantDoubt(t, rule(t, canceled, noted))
	wantSure(t, rule(t, change(10, "active", "canceled"), noted), "canceled, with a note")
}

func name(o provider.Observation) string { return is(versioning.NewState(o.State, o.Deleted, nil)) }

func TestCounterPairwiseChangeSets(t *testing.T) {
	t.Parallel()
	there, back := change(10, "1", "2"), change(10, "2", "1")
	successor := func(stored, in provider.Observation) bool {
		return stored.At < in.At || stored.At == in.At && in.Before.Sum(canonical.Options{}) == stored.State.Sum(canonical.Options{})
	}
	wantWrong(t, keep(successor, there, back), "1")
	wantWrong(t, keep(successor, back, there), "2") // each looks like the other's successor
	wantDoubt(t, rule(t, there, back))
	if diff := cmp.Diff(rule(t, there, back), rule(t, back, there)); diff != "" {
		t.Errorf("the order matters:\n%s", diff)
	}
}

func TestCounterCountingArrows(t *testing.T) {
	t.Parallel()
	trace := []provider.Observation{change(10, "A", "B"), change(10, "B", "A"), change(10, "A", "B")} // the third is the first again
	balance := map[string]int{}
	for _, o := range trace {
		balance[name(o)]++
		balance[before(o)]--
	}
	end := ""
	for state, n := range balance {
		if n == 1 {
			end = state
		}
	}
	wantWrong(t, end, "B") // the truth is A
	wantDoubt(t, rule(t, trace...))
}

func before(o provider.Observation) string {
	return is(versioning.NewState(o.Before, false, nil))
}

func TestCounterAllConsistentOrdersEndAlike(t *testing.T) {
	t.Parallel()
	trace := []provider.Observation{change(10, "A", "B"), change(10, "B", "C"), change(10, "C", "B"), change(10, "B", "C")} // the fourth is the second again
	ends := walkEnds(trace, "A")
	wantWrong(t, ends[0], "C") // the truth is B
	if slices.ContainsFunc(ends, func(end string) bool { return end != "C" }) {
		t.Errorf("walks end at %v", ends)
	}
	wantDoubt(t, rule(t, trace...))
}

// walkEnds are the ends of all orders of the changes in which each starts where the one before it ended.
func walkEnds(left []provider.Observation, at string) []string {
	if len(left) == 0 {
		return []string{at}
	}
	var ends []string
	for i, o := range left {
		if before(o) == at {
			ends = append(ends, walkEnds(slices.Delete(slices.Clone(left), i, i+1), name(o))...)
		}
	}
	return ends
}

func TestCounterNoReturnWithoutChangeSet(t *testing.T) {
	t.Parallel()
	trace := []provider.Observation{change(10, "A", "B"), whole(10, "C"), change(10, "C", "A")}
	next := map[string]string{}
	for _, o := range trace {
		if o.Before.Kind() != canonical.Missing {
			next[before(o)] = name(o)
		}
	}
	end := "C" // told without a change-set, so taken for new: all else must follow from it
	for next[end] != "" {
		end = next[end]
	}
	wantWrong(t, end, "B") // the truth is A
	wantDoubt(t, rule(t, trace...))
}

func TestCounterTieSetAsEventIDs(t *testing.T) {
	t.Parallel()
	early, late := []provider.Observation{change(10, "A", "B"), change(10, "B", "C")}, change(10, "Z", "A")
	// The bodies of the early ones were in a partition that has been dropped, so a set of ids finds only the late one.
	wantWrong(t, is(rule(t, late).State), "A")
	row := rule(t, early...)
	row = stored(t, row)
	versioning.Apply(&row, input(t, late))
	wantSure(t, row, "C")
}

// Whatever walk over few states is told, with a change-set or without one per step and in any order: the end that is
// shown without doubt is the end. All walks of up to 5 changes over 4 states; under the race detector, which has nothing to see here, of up to 3.
func TestEveryShortWalk(t *testing.T) {
	t.Parallel()
	w := walks{t: t, states: []string{"A", "B", "C", "D"}}
	for _, s := range w.states {
		w.next(s, nil)
	}
	if w.sure == 0 || w.doubted == 0 {
		t.Errorf("%d walks were sure, %d in doubt", w.sure, w.doubted)
	}
}

type walks struct {
	t             *testing.T
	states        []string
	inputs        map[string]versioning.Input
	sure, doubted int
}

// next tries every change from the state a walk has come to, told with and without a change-set.
func (w *walks) next(at string, so []versioning.Input) {
	if len(so) > 0 {
		w.check(at, so)
	}
	if len(so) == longestWalk {
		return
	}
	for _, to := range w.states {
		if to != at {
			w.next(to, append(slices.Clip(so), w.input(at, to)))
			w.next(to, append(slices.Clip(so), w.input("", to)))
		}
	}
}

// input makes each of the few inputs once.
func (w *walks) input(from, to string) versioning.Input {
	if in, made := w.inputs[from+to]; made {
		return in
	}
	if w.inputs == nil {
		w.inputs = map[string]versioning.Input{}
	}
	o := whole(10, to)
	if from != "" {
		o = change(10, from, to)
	}
	w.inputs[from+to] = input(w.t, o)
	return w.inputs[from+to]
}

func (w *walks) check(end string, ins []versioning.Input) {
	row := versioning.NewRow()
	for _, in := range ins {
		versioning.Apply(&row, in)
	}
	if row.Ambiguous {
		w.doubted++
		return
	}
	w.sure++
	if is(row.State) != end {
		w.t.Fatalf("a walk of %d changes ends at %s, the row shows %s", len(ins), end, is(row.State))
	}
}
