package versioning_test

import (
	"slices"
	"testing"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The states of these tests are letters, and the times are whole seconds of the provider's clock.
const second = int64(1_000_000)

// stateEvent returns an event with a whole state at a second.
func stateEvent(at int64, state string) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, State: letterState(state)}
}

// changeEvent returns an event that also contains the state before the change.
func changeEvent(at int64, before, after string) provider.Observation {
	o := stateEvent(at, after)
	o.Before = letterState(before)
	return o
}

// deleteEvent returns a delete.
func deleteEvent(at int64, final bool) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, Deleted: true, Final: final}
}

func letterState(state string) *canonical.Value {
	v, err := canonical.Parse([]byte(`{"is":"` + state + `"}`))
	if err != nil {
		panic(err)
	}
	return v
}

// toInput converts an observation that was received at its own time.
func toInput(t *testing.T, o provider.Observation) versioning.Input {
	t.Helper()
	return inputReceivedAt(t, o, o.At)
}

// playEvents applies observations in this order.
func playEvents(t *testing.T, trace ...provider.Observation) versioning.Row {
	t.Helper()
	return play(t, inputs(t, trace...))
}

// stateLetter returns the letter of a state, or "gone" for a deletion.
func stateLetter(s versioning.State) string {
	if s.Deleted {
		return "gone"
	}
	v, err := canonical.Parse(s.JSON)
	if err != nil {
		return "nothing"
	}
	text, _ := v.Get("is").Text()
	return text
}

// wantCertain and wantAmbiguous check the shown state, and whether the row is ambiguous or has a
// pending refetch.
func wantCertain(t *testing.T, row versioning.Row, state string) {
	t.Helper()
	if stateLetter(row.State) != state || row.Ambiguous || row.RefetchAfter != 0 {
		t.Errorf("the row shows %s (ambiguous %v, refetch after %d), want %s, unambiguous", stateLetter(row.State),
			row.Ambiguous, row.RefetchAfter, state)
	}
}

func wantAmbiguous(t *testing.T, row versioning.Row) {
	t.Helper()
	if !row.Ambiguous || row.RefetchAfter == 0 {
		t.Errorf("the row shows %s (ambiguous %v, refetch after %d), want an ambiguous row and a pending refetch",
			stateLetter(row.State), row.Ambiguous, row.RefetchAfter)
	}
}

// refetchAt returns a response that began at a second and took no time, from an API without lag.
func refetchAt(began int64, state string) sim.APIResponse {
	a := sim.APIResponse{Date: began * second, Unit: second}
	if state == "404" {
		a.State = versioning.NullState(true)
		return a
	}
	a.State = versioning.NewState(letterState(state), false, nil)
	return a
}

// A simpler rule would decide each of these traces wrongly, without showing an ambiguity. A row's
// name is the wrong assumption of that simpler rule.
func TestApply_tracesOfSimplerRules_endRight(t *testing.T) {
	t.Parallel()
	unadvanced := func(state string) versioning.Input {
		o := stateEvent(10, state)
		o.OwnVersion, o.MayNotAdvance = true, true
		return toInput(t, o)
	}
	returns := inputs(t, stateEvent(10, "A"), deleteEvent(10, false), stateEvent(10, "B"), stateEvent(11, "C"))
	lagging := refetchAt(11, "A")
	lagging.Lag = 2 * second
	missing := refetchAt(5, "404").Input()
	for name, c := range map[string]struct {
		trace []versioning.Input
		want  string // "?" means ambiguous, "!" a pending refetch
	}{
		"a delete is final although ids are reused":              {returns[:3], "?!"},
		"a delete is final although ids are reused, later event": {returns, "C"},
		"an equal state keeps the older version": {inputs(t, stateEvent(10, "A"), stateEvent(12, "A"),
			stateEvent(11, "B")), "A"},
		"a later event of one version wins": {[]versioning.Input{unadvanced("A"), unadvanced("B")}, "?!"},
		"a refetch is no newer than the event of its version": {[]versioning.Input{unadvanced("A"), unadvanced("B"),
			ownVersionRefetch(20, 10, "B")}, "B"},
		"a missing object is deleted for good": {append([]versioning.Input{missing}, inputs(t, stateEvent(10, "A"))...),
			"A"},
		"a missing object is deleted for good, refetch last": {append(inputs(t, stateEvent(10, "A")), missing), "A"},
		"the API has no lag": {append(inputs(t, stateEvent(10, "B")), lagging.Input()), "B!"},
		"changed fields are merged into the state": {append(inputs(t, stateEvent(10, "A")), partialInput(t, 12),
			partialInput(t, 11)), "A!"},
		"a tombstone keeps the last state": {inputs(t, stateEvent(10, "A"), deleteEvent(11, true)),
			"gone"},
		"a tombstone keeps the last state, delete first": {inputs(t, deleteEvent(11, true), stateEvent(10, "A")),
			"gone"},
		"a rebuilt row does not know the dropped winner": {inputs(t, stateEvent(20, "B"), stateEvent(10, "A")), "B"},
		"a stored version has no change-sets":            {inputs(t, eventsOf("A>B B>C Z>A")...), "C"},
		"a copied event counts as a new change":          {inputs(t, eventsOf("X>A A>B X>A")...), "B"},
		"change-sets can be counted":                     {inputs(t, eventsOf("A>B B>A A>B")...), "?!"},
		"each change-set is the successor of the other":  {inputs(t, eventsOf("1>2 2>1")...), "?!"},
		"an event without a change-set came first":       {inputs(t, eventsOf("A>B C C>A")...), "?!"},
		"all paths that fit have the same end":           {inputs(t, eventsOf("A>B B>C C>B B>C")...), "?!"},
	} {
		row := play(t, c.trace)
		got := stateLetter(row.State)
		if row.Ambiguous {
			got = "?"
		}
		if row.RefetchAfter != 0 {
			got += "!"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The checker tries every short walk over a few states, with and without a change-set for each
// step. When the row is unambiguous, it must show the end of the walk. It tries walks of up to 5
// changes over 4 states, and of up to 3 changes under the race detector.
func TestApply_shortWalks_neverSilentlyWrong(t *testing.T) {
	t.Parallel()
	w := walkChecker{t: t, states: []string{"A", "B", "C", "D"}}
	for _, s := range w.states {
		w.next(s, nil)
	}
	if w.certain == 0 || w.ambiguous == 0 {
		t.Errorf("%d walks were unambiguous, %d ambiguous", w.certain, w.ambiguous)
	}
}

type walkChecker struct {
	t                  *testing.T
	states             []string
	inputs             map[string]versioning.Input
	certain, ambiguous int
}

// next tries every change from the last state of the walk, with and without a change-set.
func (w *walkChecker) next(at string, soFar []versioning.Input) {
	if len(soFar) > 0 {
		w.check(at, soFar)
	}
	if len(soFar) == longestWalk {
		return
	}
	for _, to := range w.states {
		if to != at {
			w.next(to, append(slices.Clip(soFar), w.input(at, to)))
			w.next(to, append(slices.Clip(soFar), w.input("", to)))
		}
	}
}

// input returns the input of a change; it builds each only once.
func (w *walkChecker) input(from, to string) versioning.Input {
	if in, made := w.inputs[from+to]; made {
		return in
	}
	if w.inputs == nil {
		w.inputs = map[string]versioning.Input{}
	}
	o := stateEvent(10, to)
	if from != "" {
		o = changeEvent(10, from, to)
	}
	w.inputs[from+to] = toInput(w.t, o)
	return w.inputs[from+to]
}

func (w *walkChecker) check(end string, inputs []versioning.Input) {
	row := versioning.NewRow()
	for _, in := range inputs {
		versioning.Apply(&row, in)
	}
	if row.Ambiguous {
		w.ambiguous++
		return
	}
	w.certain++
	if stateLetter(row.State) != end {
		w.t.Fatalf("a walk of %d changes ends at %s, the row shows %s", len(inputs), end, stateLetter(row.State))
	}
}

func parse(t *testing.T, text string) *canonical.Value {
	t.Helper()
	v, err := canonical.Parse([]byte(text))
	testkit.Must(t, err)
	return v
}
