package versioning_test

import (
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// In these tests states are letters, and times are whole seconds of the provider's clock.
const second = int64(1_000_000)

// whole is an event that tells a whole state at a second.
func whole(at int64, state string) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, State: letter(state)}
}

// change is an event that also tells the state before.
func change(at int64, before, after string) provider.Observation {
	o := whole(at, after)
	o.Before = letter(before)
	return o
}

// gone is a delete.
func gone(at int64, final bool) provider.Observation {
	return provider.Observation{At: at * second, HasAt: true, Unit: second, Rank: 1, Deleted: true, Final: final}
}

func letter(state string) *canonical.Value {
	v, err := canonical.Parse([]byte(`{"is":"` + state + `"}`))
	if err != nil {
		panic(err)
	}
	return v
}

// input reads an observation that was received at once.
func input(t *testing.T, o provider.Observation) versioning.Input {
	t.Helper()
	in, err := versioning.FromObservation(o, time.UnixMicro(o.At))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// rule plays observations in the order given.
func rule(t *testing.T, trace ...provider.Observation) versioning.Row {
	t.Helper()
	ins := make([]versioning.Input, len(trace))
	for i, o := range trace {
		ins[i] = input(t, o)
	}
	return play(t, ins)
}

// is reads a row's letter, "gone" for a deletion.
func is(s versioning.State) string {
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

// wantSure and wantDoubt check what a row shows, and whether it says that it may be wrong.
func wantSure(t *testing.T, row versioning.Row, state string) {
	t.Helper()
	if is(row.State) != state || row.Ambiguous || row.LookAfter != 0 {
		t.Errorf("the row shows %s (ambiguous %v, look after %d), want %s and no doubt", is(row.State), row.Ambiguous, row.LookAfter, state)
	}
}

func wantDoubt(t *testing.T, row versioning.Row) {
	t.Helper()
	if !row.Ambiguous || row.LookAfter == 0 {
		t.Errorf("the row shows %s (ambiguous %v, look after %d), want doubt and a look owed", is(row.State), row.Ambiguous, row.LookAfter)
	}
}

// look is an answer that began at a second and took no time, from an API without lag.
func look(began int64, state string) sim.Answer {
	a := sim.Answer{Date: began * second, Unit: second}
	if state == "404" {
		a.State = versioning.NullState(true)
		return a
	}
	a.State = versioning.NewState(letter(state), false, nil)
	return a
}

// Each trace is one that a simpler rule, which was tried, gets wrong without a sign.
func TestApply_tracesOfSimplerRules_endRight(t *testing.T) {
	t.Parallel()
	shop := func(state string) versioning.Input {
		o := whole(10, state)
		o.Own, o.Still = true, true
		return input(t, o)
	}
	returns := ins(t, whole(10, "A"), gone(10, false), whole(10, "B"), whole(11, "C"))
	lagging := look(11, "A")
	lagging.Lag = 2 * second
	missing := look(5, "404").Input()
	for name, c := range map[string]struct {
		trace []versioning.Input
		want  string // "?" after the state: ambiguous; "!": a refetch is pending
	}{
		"a delete is final where ids come back":       {returns[:3], "?!"},
		"the same, and a later event":                 {returns, "C"},
		"the same state keeps the older version":      {ins(t, whole(10, "A"), whole(12, "A"), whole(11, "B")), "A"},
		"states of a version that stands still":       {[]versioning.Input{shop("A"), shop("B")}, "?!"},
		"a refetch is no newer than what it answers":  {[]versioning.Input{shop("A"), shop("B"), owned(20, 10, "B")}, "B"},
		"not found is final":                          {append([]versioning.Input{missing}, ins(t, whole(10, "A"))...), "A"},
		"not found is final, and comes last":          {append(ins(t, whole(10, "A")), missing), "A"},
		"the API answers with the present":            {append(ins(t, whole(10, "B")), lagging.Input()), "B!"},
		"changed fields are merged into the state":    {append(ins(t, whole(10, "A")), partial(t, 12), partial(t, 11)), "A!"},
		"a tombstone keeps the state that came last":  {ins(t, whole(10, "A"), gone(11, true)), "gone"},
		"the same, and the delete comes first":        {ins(t, gone(11, true), whole(10, "A")), "gone"},
		"a row made anew forgets what won before it":  {ins(t, whole(20, "B"), whole(10, "A")), "B"},
		"a stored version without its change-sets":    {ins(t, tell("A>B B>C Z>A")...), "C"},
		"an update that came again, and one between":  {ins(t, tell("X>A A>B X>A")...), "B"},
		"there and back, told twice":                  {ins(t, tell("A>B B>A A>B")...), "?!"},
		"each looks like the successor of the other":  {ins(t, tell("1>2 2>1")...), "?!"},
		"what comes without a change-set came first":  {ins(t, tell("A>B C C>A")...), "?!"},
		"all walks that fit end alike, and not there": {ins(t, tell("A>B B>C C>B B>C")...), "?!"},
	} {
		row := play(t, c.trace)
		got := is(row.State)
		if row.Ambiguous {
			got = "?"
		}
		if row.LookAfter != 0 {
			got += "!"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
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

func parse(t *testing.T, text string) *canonical.Value {
	t.Helper()
	v, err := canonical.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}
