package versioning_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	answer := look(20, "B").Input()
	tombstone := gone(10, true)
	tombstone.State = letter("A")
	for name, c := range map[string]struct {
		row    []versioning.Input
		in     versioning.Input
		status versioning.Status
		reason string
	}{
		"first":                      {nil, input(t, whole(10, "A")), versioning.Applied, "first whole state"},
		"newer":                      {ins(t, whole(10, "A")), input(t, whole(11, "B")), versioning.Applied, "newer than the stored version (at 10000000, rank 1)"},
		"newer and the same":         {ins(t, whole(10, "A")), input(t, whole(11, "A")), versioning.Unchanged, "newer than"},
		"again":                      {ins(t, whole(10, "A")), input(t, whole(10, "A")), versioning.Unchanged, "of the stored version"},
		"older":                      {ins(t, whole(10, "A")), input(t, whole(9, "B")), versioning.Stale, "older than the stored version (at 10000000, rank 1)"},
		"older than a delete":        {ins(t, gone(10, true)), input(t, whole(99, "B")), versioning.Stale, "final, at 10000000"},
		"tie":                        {ins(t, whole(10, "A")), input(t, whole(10, "B")), versioning.Ambiguous, "order of 2 different states"},
		"a tie told apart":           {ins(t, change(10, "X", "A")), input(t, change(10, "A", "B")), versioning.Applied, "change-sets"},
		"a tie told apart before":    {ins(t, change(10, "A", "B")), input(t, change(10, "X", "A")), versioning.Unchanged, "does not change"},
		"a tie settled":              {ins(t, change(10, "A", "B"), change(10, "C", "D")), input(t, change(10, "B", "C")), versioning.Applied, "settles the order"},
		"partial":                    {ins(t, whole(10, "A")), partial(t, 11), versioning.Ambiguous, "partial: ids only; a look"},
		"partial at first":           {nil, partial(t, 11), versioning.Ambiguous, "partial: ids only"},
		"partial after final":        {ins(t, gone(10, true)), partial(t, 11), versioning.Stale, "final delete"},
		"partial, seen past":         {[]versioning.Input{answer}, partial(t, 19), versioning.Stale, "look that began later"},
		"partial, not seen":          {[]versioning.Input{answer}, partial(t, 20), versioning.Ambiguous, "look"},
		"look":                       {ins(t, whole(10, "A")), answer, versioning.Applied, "a look at the provider, newer"},
		"look against a close event": {ins(t, whole(20, "A")), look(20, "B").Input(), versioning.Ambiguous, "nothing proves which came later"},
		"event against a close look": {[]versioning.Input{answer}, input(t, whole(20, "A")), versioning.Ambiguous, "nothing proves"},
		"found alive":                {ins(t, gone(10, true)), look(50, "A").Input(), versioning.Dead, "alive"},
		"found alive too early":      {ins(t, gone(10, true)), look(10, "A").Input(), versioning.Stale, "final, at 10000000"},
		"found gone":                 {ins(t, gone(10, true)), look(50, "404").Input(), versioning.Stale, "final"},
		"found gone after a delete that carried a state": {ins(t, tombstone), look(10, "404").Input(), versioning.Stale, "final"},
		"own versions apart, windows together":           {[]versioning.Input{owned(20, 10, "A")}, ownEvent(t, 20, "B"), versioning.Applied, "newer"},
		"own versions equal, windows together":           {[]versioning.Input{owned(20, 10, "A")}, ownEvent(t, 10, "B"), versioning.Ambiguous, "nothing proves"},
	} {
		row := play(t, c.row)
		d := versioning.Apply(&row, c.in)
		if d.Status != c.status || !strings.Contains(d.Reason, c.reason) || d.DecidedBy != row.Version {
			t.Errorf("%s: %s by %v: %s; want %s: ...%s...", name, d.Status, d.DecidedBy, d.Reason, c.status, c.reason)
		}
	}
}

// owned is a look that began at a second and found an own version.
func owned(began, at int64, state string) versioning.Input {
	a := look(began, state)
	a.Own, a.Version, a.VersionUnit = true, at*second, second
	return a.Input()
}

// ownEvent is an event with an own version that may stand still, received at second 25.
func ownEvent(t *testing.T, at int64, state string) versioning.Input {
	t.Helper()
	o := whole(at, state)
	o.Own, o.Still = true, true
	in, err := versioning.FromObservation(o, time.UnixMicro(25*second))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func ins(t *testing.T, trace ...provider.Observation) []versioning.Input {
	t.Helper()
	all := make([]versioning.Input, len(trace))
	for i, o := range trace {
		all[i] = input(t, o)
	}
	return all
}

func partial(t *testing.T, at int64) versioning.Input {
	t.Helper()
	o := whole(at, "A")
	o.Partial, o.State = "ids only", nil
	return input(t, o)
}

// noisy is a state that compares as A but is exactly another.
func noisy(t *testing.T, at int64, extra string) provider.Observation {
	t.Helper()
	o := whole(at, "")
	o.State, o.Volatile = parse(t, `{"is":"A","hits":`+extra+`}`), []string{"hits"}
	return o
}

func TestExactStates(t *testing.T) {
	t.Parallel()
	row := rule(t, noisy(t, 10, "1"))
	if d := versioning.Apply(&row, input(t, noisy(t, 11, "2"))); d.Status != versioning.Applied || string(row.State.JSON) != `{"is":"A","hits":2}` {
		t.Errorf("a greater version that differs in a volatile field only is %s and leaves %s", d.Status, row.State.JSON)
	}
	// Of one version, the greatest exact state is shown whatever comes first, and nothing is ambiguous.
	a, b := rule(t, noisy(t, 10, "1"), noisy(t, 10, "2")), rule(t, noisy(t, 10, "2"), noisy(t, 10, "1"))
	if diff := cmp.Diff(a, b); diff != "" || a.Ambiguous || len(a.Set) != 1 {
		t.Errorf("ambiguous %v, set %v, and by order:\n%s", a.Ambiguous, a.Set, diff)
	}
	// Differences that do not count raise no doubt between a look and an event either.
	row = rule(t, noisy(t, 20, "1"))
	answer := look(20, "A").Input()
	if d := versioning.Apply(&row, answer); d.Status != versioning.Stale || row.LookAfter != 0 {
		t.Errorf("a look of the same state is %s and leaves a look owed after %d", d.Status, row.LookAfter)
	}
}

// A row that is read from the store has its state's JSON only once; members that shared it keep it when another joins.
func TestMembersKeepTheirJSON(t *testing.T) {
	t.Parallel()
	row := rule(t, whole(10, "A"))
	row = stored(t, row)
	if row.Set[0].State.JSON != nil {
		t.Fatalf("a set of one state was stored with it: %s", row.Set[0].State.JSON)
	}
	versioning.Apply(&row, input(t, whole(10, "B")))
	row = stored(t, row)
	for _, m := range row.Set {
		if is(m.State) == "nothing" {
			t.Errorf("the member %x has lost its state", m.State.Hash[:4])
		}
	}
	unread := func() versioning.Row {
		row := rule(t, whole(10, "A"))
		row = stored(t, row)
		row.State.JSON = nil // read without its state
		return row
	}
	row = unread()
	versioning.Apply(&row, input(t, whole(10, "A"))) // brings it again
	versioning.Apply(&row, input(t, whole(10, "B")))
	stored(t, row)
	row = unread()
	versioning.Apply(&row, input(t, whole(10, "B")))
	if text, err := versioning.EncodeSet(&row); err == nil {
		t.Errorf("a state without JSON was stored as %s", text)
	}
}

// Beyond 64 members the set is cut to one, and still every order ends in the same row.
func TestOverflow(t *testing.T) {
	t.Parallel()
	var all []versioning.Input
	for i := range 70 {
		o := whole(10, fmt.Sprint(i))
		if i%3 == 0 {
			o = change(10, fmt.Sprint(i), fmt.Sprint(i+1))
		}
		all = append(all, input(t, o))
		all[i].Lo, all[i].Hi = all[i].Lo-int64(i), all[i].Hi+int64(i)
		all[i].Look = i == 40
	}
	want := play(t, all)
	if len(want.Set) != 1 || !want.Overflow || !want.Ambiguous || want.Set[0].State.Hash != want.State.Hash || !want.Set[0].Look {
		t.Errorf("%d members (overflow %v, ambiguous %v)", len(want.Set), want.Overflow, want.Ambiguous)
	}
	if want.Lo != 10*second-69 || want.Hi != 11*second-1+69 {
		t.Errorf("window [%d, %d]", want.Lo, want.Hi)
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
	if len(below.Set) != 64 || below.Overflow {
		t.Errorf("64 members are %d (overflow %v)", len(below.Set), below.Overflow)
	}
	if one := play(t, all[:65]); len(one.Set) != 1 || !one.Overflow {
		t.Errorf("65 members are %d (overflow %v)", len(one.Set), one.Overflow)
	}
	versioning.Apply(&want, input(t, whole(12, "Z")))
	wantSure(t, want, "Z")
	if want.Overflow {
		t.Error("a greater version leaves the overflow")
	}
}

func TestLookAfter(t *testing.T) {
	t.Parallel()
	row := rule(t, whole(10, "A"), whole(10, "B"))
	if row.LookAfter != 11*second-1 {
		t.Errorf("a tie owes a look after %d", row.LookAfter)
	}
	versioning.Apply(&row, input(t, whole(11, "C")))
	wantSure(t, row, "C")
	versioning.Apply(&row, partial(t, 15))
	versioning.Apply(&row, input(t, whole(15, "D")))
	if row.LookAfter != 16*second-1 {
		t.Errorf("an event of the second that is owed a look leaves %d", row.LookAfter)
	}
	versioning.Apply(&row, input(t, gone(16, true)))
	wantSure(t, row, "gone")
	row = rule(t, whole(60, "A"))
	versioning.Apply(&row, partial(t, 50))
	versioning.Apply(&row, input(t, whole(55, "C")))
	if row.LookAfter != 51*second-1 {
		t.Errorf("a stale event leaves a look owed after %d", row.LookAfter)
	}
	versioning.Apply(&row, input(t, provider.Observation{Deleted: true, Final: true}))
	wantSure(t, row, "gone")
	// A counter's ties are owed a look too, though 0 means that none is.
	counter := func(at int64, state string) provider.Observation {
		return provider.Observation{At: at, HasAt: true, Unit: 1, Own: true, State: letter(state)}
	}
	row = rule(t, counter(0, "A"), counter(0, "B"))
	wantDoubt(t, row)
	answer := look(20, "B")
	answer.Own, answer.VersionUnit = true, 1
	versioning.Apply(&row, answer.Input())
	wantSure(t, row, "B")
}

// LookAfter is no part of what all orders agree on: a later event clears what a hint owed, but the row does not remember
// that it began after a hint that comes behind it. The worst is one look too many.
func TestLookAfterDependsOnTheOrder(t *testing.T) {
	t.Parallel()
	hint, event := partial(t, 10), input(t, whole(20, "A"))
	late, early := play(t, []versioning.Input{event, hint}), play(t, []versioning.Input{hint, event})
	if diff := cmp.Diff(same(late), same(early)); diff != "" {
		t.Errorf("more than LookAfter differs:\n%s", diff)
	}
	if early.LookAfter != 0 || late.LookAfter != 11*second-1 {
		t.Errorf("a look is owed after %d if the hint came first, %d if last", early.LookAfter, late.LookAfter)
	}
}

func TestVersionInWords(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]versioning.Version{
		"no version":                      versioning.NoVersion,
		"at 7, rank 1":                    {At: 7, Rank: 1},
		"at 2023-11-14T22:13:20Z, rank 3": {At: 1.7e15, Rank: 3},
		"final, at 0, rank 1":             {Final: true, Rank: 1},
		"at 2023-11-14T22:13:20.5Z, seen 2023-11-14T22:13:21Z, rank 1": {At: 1.7e15 + 500_000, Seen: 1.7e15 + second, Rank: 1},
	} {
		if got := v.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
