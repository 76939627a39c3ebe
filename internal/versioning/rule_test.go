package versioning_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// statusCase is an input for a row, with the expected decision.
type statusCase struct {
	row    []versioning.Input
	in     versioning.Input
	status versioning.Status
	reason string
}

// apply applies the input and checks the decision.
func (c statusCase) apply(t *testing.T, name string) versioning.Row {
	t.Helper()
	row := play(t, c.row)
	d := versioning.Apply(&row, c.in)
	if d.Status != c.status || !strings.Contains(d.Reason, c.reason) || d.DecidedBy != row.Version {
		t.Errorf("%s: %s by %v: %s; want %s: ...%s...", name, d.Status, d.DecidedBy, d.Reason, c.status, c.reason)
	}
	return row
}

func TestApply_inputs_statusesAndReasons(t *testing.T) {
	t.Parallel()
	refetch := refetchAt(20, "B").Input()
	tombstone := deleteEvent(10, true)
	tombstone.State = letterState("A")
	for name, c := range map[string]statusCase{
		"first": {nil, toInput(t, stateEvent(10, "A")), versioning.Applied, "first complete state"},
		"newer": {inputs(t, stateEvent(10, "A")), toInput(t, stateEvent(11, "B")), versioning.Applied,
			"newer than the stored version (at 10000000, rank 1)"},
		"newer with an equal state": {inputs(t, stateEvent(10, "A")), toInput(t, stateEvent(11, "A")),
			versioning.Unchanged, "newer than"},
		"again": {inputs(t, stateEvent(10, "A")), toInput(t, stateEvent(10, "A")), versioning.Unchanged,
			"same version as the stored one"},
		"older": {inputs(t, stateEvent(10, "A")), toInput(t, stateEvent(9, "B")), versioning.Stale,
			"older than the stored version (at 10000000, rank 1)"},
		"older than a delete": {inputs(t, deleteEvent(10, true)), toInput(t, stateEvent(99, "B")), versioning.Stale,
			"final, at 10000000"},
		"tie": {inputs(t, stateEvent(10, "A")), toInput(t, stateEvent(10, "B")), versioning.Ambiguous,
			"order of 2 different states"},
		"a tie that change-sets resolve": {inputs(t, changeEvent(10, "X", "A")), toInput(t, changeEvent(10, "A", "B")),
			versioning.Applied, "change-sets"},
		"a tie that change-sets already resolved": {inputs(t, changeEvent(10, "A", "B")),
			toInput(t, changeEvent(10, "X", "A")), versioning.Unchanged, "no change of content"},
		"a tie that the missing change-set resolves": {inputs(t, changeEvent(10, "A", "B"), changeEvent(10, "C", "D")),
			toInput(t, changeEvent(10, "B", "C")), versioning.Applied, "now the order is known"},
		"partial": {inputs(t, stateEvent(10, "A")), partialInput(t, 11), versioning.Ambiguous,
			"partial: ids only; a refetch"},
		"partial without a row": {nil, partialInput(t, 11), versioning.Ambiguous, "partial: ids only"},
		"partial after a final delete": {inputs(t, deleteEvent(10, true)), partialInput(t, 11), versioning.Stale,
			"final delete"},
		"partial, before a refetch": {[]versioning.Input{refetch}, partialInput(t, 19), versioning.Stale,
			"refetch that began later"},
		"partial, at the start of a refetch": {[]versioning.Input{refetch}, partialInput(t, 20), versioning.Ambiguous,
			"refetch"},
		"refetch": {inputs(t, stateEvent(10, "A")), refetch, versioning.Applied,
			"a refetch, newer"},
		"refetch close to an event": {inputs(t, stateEvent(20, "A")), refetchAt(20, "B").Input(), versioning.Ambiguous,
			"it is unknown whether a refetch or an event is newer"},
		"event close to a refetch": {[]versioning.Input{refetch}, toInput(t, stateEvent(20, "A")), versioning.Ambiguous,
			"it is unknown"},
		"found alive after a final delete": {inputs(t, deleteEvent(10, true)), refetchAt(50, "A").Input(),
			versioning.Dead, "alive"},
		"found alive at the time of a final delete": {inputs(t, deleteEvent(10, true)), refetchAt(10, "A").Input(),
			versioning.Stale, "final, at 10000000"},
		"missing after a final delete": {inputs(t, deleteEvent(10, true)), refetchAt(50, "404").Input(),
			versioning.Stale, "final"},
		"missing after a delete that carried a state": {inputs(t, tombstone), refetchAt(10, "404").Input(),
			versioning.Stale, "final"},
		"different own versions, overlapping time ranges": {[]versioning.Input{ownVersionRefetch(20, 10, "A")},
			lateOwnVersionEvent(t, 20, "B"), versioning.Applied, "newer"},
		"equal own versions, overlapping time ranges": {[]versioning.Input{ownVersionRefetch(20, 10, "A")},
			lateOwnVersionEvent(t, 10, "B"), versioning.Ambiguous, "it is unknown"},
	} {
		c.apply(t, name)
	}
}

// ownVersionRefetch returns a refetch that began at a second and found an own version.
func ownVersionRefetch(began, at int64, state string) versioning.Input {
	a := refetchAt(began, state)
	a.HasVersion, a.Version, a.VersionUnit = true, at*second, second
	return a.Input()
}

// lateOwnVersionEvent returns an event, received at second 25, whose own version may not advance.
func lateOwnVersionEvent(t *testing.T, at int64, state string) versioning.Input {
	t.Helper()
	o := stateEvent(at, state)
	o.OwnVersion, o.MayNotAdvance = true, true
	return inputReceivedAt(t, o, 25*second)
}

func inputs(t *testing.T, trace ...provider.Observation) []versioning.Input {
	t.Helper()
	all := make([]versioning.Input, len(trace))
	for i, o := range trace {
		all[i] = toInput(t, o)
	}
	return all
}

func partialInput(t *testing.T, at int64) versioning.Input {
	t.Helper()
	o := stateEvent(at, "A")
	o.Partial, o.State = "ids only", nil
	return toInput(t, o)
}

// stateWithIgnoredPath returns a state that compares as equal to A but has another exact hash.
func stateWithIgnoredPath(t *testing.T, at int64, extra string) provider.Observation {
	t.Helper()
	o := stateEvent(at, "")
	o.State, o.IgnoredPaths = parse(t, `{"is":"A","hits":`+extra+`}`), []string{"hits"}
	return o
}

func TestApply_ignoredPathsDiffer_greatestExactStateIsShown(t *testing.T) {
	t.Parallel()
	row := playEvents(t, stateWithIgnoredPath(t, 10, "1"))
	if d := versioning.Apply(&row, toInput(t, stateWithIgnoredPath(t, 11, "2"))); d.Status != versioning.Applied ||
		string(row.State.JSON) != `{"is":"A","hits":2}` {
		t.Errorf("a greater version that differs only in an ignored path is %s and leaves %s", d.Status, row.State.JSON)
	}
	// Of one version the greatest exact state is shown in any order, and the row is unambiguous.
	a, b := playEvents(t, stateWithIgnoredPath(t, 10, "1"), stateWithIgnoredPath(t, 10, "2")),
		playEvents(t, stateWithIgnoredPath(t, 10, "2"), stateWithIgnoredPath(t, 10, "1"))
	if diff := cmp.Diff(a, b); diff != "" || a.Ambiguous || len(a.TiedStates) != 1 {
		t.Errorf("ambiguous %v, tied states %v, difference by order:\n%s", a.Ambiguous, a.TiedStates, diff)
	}
	// A difference only in ignored paths makes no ambiguity between a refetch and an event either.
	row = playEvents(t, stateWithIgnoredPath(t, 20, "1"))
	refetch := refetchAt(20, "A").Input()
	if d := versioning.Apply(&row, refetch); d.Status != versioning.Stale || row.RefetchAfter != 0 {
		t.Errorf("a refetch of the same state is %s and leaves a refetch pending after %d", d.Status, row.RefetchAfter)
	}
}

// A row that is read from the store has the JSON of its state only once. Tied states that shared it
// keep it when another state joins.
func TestApply_tiedStates_keepTheirJSON(t *testing.T) {
	t.Parallel()
	row := playEvents(t, stateEvent(10, "A"))
	row = storeAndRead(t, row)
	if row.TiedStates[0].State.JSON != nil {
		t.Fatalf("a single tied state was stored with its JSON: %s", row.TiedStates[0].State.JSON)
	}
	versioning.Apply(&row, toInput(t, stateEvent(10, "B")))
	row = storeAndRead(t, row)
	for _, m := range row.TiedStates {
		if stateLetter(m.State) == "nothing" {
			t.Errorf("the tied state %x has lost its JSON", m.State.Hash[:4])
		}
	}
	unread := func() versioning.Row {
		row := playEvents(t, stateEvent(10, "A"))
		row = storeAndRead(t, row)
		row.State.JSON = nil // read without its state
		return row
	}
	row = unread()
	versioning.Apply(&row, toInput(t, stateEvent(10, "A"))) // brings the JSON again
	versioning.Apply(&row, toInput(t, stateEvent(10, "B")))
	storeAndRead(t, row)
	row = unread()
	versioning.Apply(&row, toInput(t, stateEvent(10, "B")))
	if text, err := versioning.EncodeTiedStates(&row); err == nil {
		t.Errorf("a state without JSON was stored as %s", text)
	}
}

// Above 64 tied states only one is kept, and every order still ends in the same row.
func TestApply_over64TiedStates_keepsGreatest(t *testing.T) {
	t.Parallel()
	var all []versioning.Input
	for i := range 70 {
		o := stateEvent(10, fmt.Sprint(i))
		if i%3 == 0 {
			o = changeEvent(10, fmt.Sprint(i), fmt.Sprint(i+1))
		}
		all = append(all, toInput(t, o))
		all[i].TimeFrom, all[i].TimeTo = all[i].TimeFrom-int64(i), all[i].TimeTo+int64(i)
		all[i].IsRefetch = i == 40
	}
	want := play(t, all)
	if len(want.TiedStates) != 1 || !want.Overflow || !want.Ambiguous ||
		want.TiedStates[0].State.Hash != want.State.Hash || !want.TiedStates[0].FromRefetch {
		t.Errorf("%d tied states (overflow %v, ambiguous %v)", len(want.TiedStates), want.Overflow, want.Ambiguous)
	}
	if want.TimeFrom != 10*second-69 || want.TimeTo != 11*second-1+69 {
		t.Errorf("time range [%d, %d]", want.TimeFrom, want.TimeTo)
	}
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		order := slices.Concat(all, all[:20])
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		if diff := cmp.Diff(want, play(t, order)); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s", seed, diff)
		}
	}
	below := play(t, slices.Concat(all[:64], all[:30]))
	if len(below.TiedStates) != 64 || below.Overflow {
		t.Errorf("of 64 tied states %d are kept (overflow %v)", len(below.TiedStates), below.Overflow)
	}
	if one := play(t, all[:65]); len(one.TiedStates) != 1 || !one.Overflow {
		t.Errorf("of 65 tied states %d are kept (overflow %v)", len(one.TiedStates), one.Overflow)
	}
	versioning.Apply(&want, toInput(t, stateEvent(12, "Z")))
	wantCertain(t, want, "Z")
	if want.Overflow {
		t.Error("a greater version keeps the overflow")
	}
}

func TestApply_refetchAfter_isRaisedAndCleared(t *testing.T) {
	t.Parallel()
	row := playEvents(t, stateEvent(10, "A"), stateEvent(10, "B"))
	if row.RefetchAfter != 11*second-1 {
		t.Errorf("a tie needs a refetch after %d", row.RefetchAfter)
	}
	versioning.Apply(&row, toInput(t, stateEvent(11, "C")))
	wantCertain(t, row, "C")
	versioning.Apply(&row, partialInput(t, 15))
	versioning.Apply(&row, toInput(t, stateEvent(15, "D")))
	if row.RefetchAfter != 16*second-1 {
		t.Errorf("an event of the second of the pending refetch leaves %d", row.RefetchAfter)
	}
	versioning.Apply(&row, toInput(t, deleteEvent(16, true)))
	wantCertain(t, row, "gone")
	row = playEvents(t, stateEvent(60, "A"))
	versioning.Apply(&row, partialInput(t, 50))
	versioning.Apply(&row, toInput(t, stateEvent(55, "C")))
	if row.RefetchAfter != 51*second-1 {
		t.Errorf("a stale event leaves a refetch pending after %d", row.RefetchAfter)
	}
	versioning.Apply(&row, toInput(t, provider.Observation{Deleted: true, Final: true}))
	wantCertain(t, row, "gone")
	// Ties of integer versions make a refetch pending too, although 0 means none.
	counter := func(at int64, state string) provider.Observation {
		return provider.Observation{At: at, HasAt: true, Unit: 1, OwnVersion: true, State: letterState(state)}
	}
	row = playEvents(t, counter(0, "A"), counter(0, "B"))
	wantAmbiguous(t, row)
	refetch := refetchAt(20, "B")
	refetch.HasVersion, refetch.VersionUnit = true, 1
	versioning.Apply(&row, refetch.Input())
	wantCertain(t, row, "B")
}

// RefetchAfter may depend on the order. A later event clears the refetch of a partial event, but
// the row does not remember that when the partial event arrives last. The worst result is one
// unnecessary refetch.
func TestApply_refetchAfter_dependsOnOrder(t *testing.T) {
	t.Parallel()
	partial, event := partialInput(t, 10), toInput(t, stateEvent(20, "A"))
	late, early := play(t, []versioning.Input{event, partial}), play(t, []versioning.Input{partial, event})
	if diff := cmp.Diff(withoutOrder(late), withoutOrder(early)); diff != "" {
		t.Errorf("the order changes more than RefetchAfter:\n%s", diff)
	}
	if early.RefetchAfter != 0 || late.RefetchAfter != 11*second-1 {
		t.Errorf("a refetch is pending after %d if the partial event came first, %d if last", early.RefetchAfter,
			late.RefetchAfter)
	}
}

func TestVersion_String_describesParts(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]versioning.Version{
		"no version":                      versioning.NoVersion,
		"at 7, rank 1":                    {At: 7, Rank: 1},
		"at 2023-11-14T22:13:20Z, rank 3": {At: 1.7e15, Rank: 3},
		"final, at 0, rank 1":             {Final: true, Rank: 1},
		"at 2023-11-14T22:13:20.5Z, seen 2023-11-14T22:13:21Z, rank 1": {At: 1.7e15 + 500_000, Seen: 1.7e15 + second,
			Rank: 1},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
