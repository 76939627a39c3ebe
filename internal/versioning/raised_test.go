package versioning_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// hiding is a provider of any kind some of whose objects cannot be found for a while.
func hiding(c sim.Chooser) sim.Options {
	o := anyOptions(c)
	o.Hides, o.Gap = 50, pick[int64](c, 700_000, 3_000_000, 9_000_000)
	if c.IntN(4) > 0 {
		o.Own, o.Still, o.Integer, o.Frozen = true, c.IntN(4) > 0, false, false
	}
	return o
}

// arrival is an event, or a look that is still to be made, when it is received.
type arrival struct {
	at   int64
	in   versioning.Input
	look *sim.Look
}

// followed is what is received of the history's only object, in that order, with looks at any moments. Whoever makes a look knows the row, perhaps as it was a
// little before.
func followed(t fataler, c sim.Chooser, h *sim.History) (ins []versioning.Input, row versioning.Row) {
	t.Helper()
	var all []arrival
	for _, in := range observeAll(t, h.Events) {
		all = append(all, arrival{at: in.Received, in: in})
	}
	for range c.IntN(5) {
		l := anyLook(c, pick(c, h.Times("obj_1")...)+int64(c.IntN(4_000_000)))
		all = append(all, arrival{at: l.Began + l.Elapsed + int64(c.IntN(2))*2_000_000, look: &l}) // whoever makes it may be slow
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	rows := []versioning.Row{versioning.NewRow()}
	for _, a := range all {
		if a.look != nil {
			a.in = raised(h, *a.look, &rows[max(0, len(rows)-1-c.IntN(3))])
		}
		ins = append(ins, a.in)
		rows = append(rows, play(t, ins))
	}
	return ins, rows[len(rows)-1]
}

// raised is a look as it is made by whoever knows the row.
func raised(h *sim.History, l sim.Look, row *versioning.Row) versioning.Input {
	in := h.Look("obj_1", l)
	if l.Raised = row.Raises(&in); l.Raised {
		in = h.Look("obj_1", l)
	}
	return in
}

// An object that was not to be found and is there again, as it was or changed, whether its own version has moved or not, is shown as it is after the next look,
// in whatever order all of it came, and nothing that comes late takes that back.
func TestHiddenAndBack(t *testing.T) {
	t.Parallel()
	everywhere(t, 5000, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, hiding(c))
		truth := h.Truth("obj_1")
		if h.Integer && truth.Deleted {
			return // not found says nothing about a counter
		}
		ins, row := followed(t, c, h)
		const slowest, second = 4_500_000, 1_000_000
		for range 2 { // the second finds nothing new
			began := max(row.LookAfter, row.Hi, h.End("obj_1")) + slowest + second + h.Unit
			ins = append(ins, raised(h, anyLook(c, began), &row))
			d := versioning.Apply(&row, ins[len(ins)-1])
			if row.State.Hash != truth.Hash || row.Ambiguous || row.LookAfter != 0 {
				t.Fatalf("after a late look (%+v) the row shows %s (ambiguous %v, look after %d), the truth is %s", d, row.State.JSON, row.Ambiguous, row.LookAfter, truth.JSON)
			}
		}
		if diff := difference(same(row), same(play(t, shuffled(c, ins)))); diff != "" {
			t.Fatalf("another order, another row (-want +got):\n%s", diff)
		}
	})
}

// Where the last that happened was told, an object that was not to be found before is not wrong in silence, however unlucky the looks were: own versions that stand
// still cannot be held against when somebody looked. No state comes twice: an event that says what is known already is no sign of what was between.
func TestBackIsNeverSilent(t *testing.T) {
	t.Parallel()
	everywhere(t, 20000, func(t fataler, c sim.Chooser) {
		o := hiding(c)
		o.Contents = 1_000_000
		h := sim.Generate(c, o)
		if h.Events[len(h.Events)-1].Happened != h.End("obj_1") {
			return // nobody tells of what is hidden, nor of what is found again
		}
		_, row := followed(t, c, h)
		if truth := h.Truth("obj_1"); row.State.Hash != truth.Hash && !row.Ambiguous && row.LookAfter == 0 {
			t.Fatalf("the row shows %s at %v and does not say that it may be wrong; the truth is %s", row.State.JSON, row.Version, truth.JSON)
		}
	})
}

// Where an object was always found, a look is ordered by its own version, however soon after the change the look before it was, and whatever the API answers: also a state that is older than it says it can be.
func TestOwnVersionsAreNotRaisedOver(t *testing.T) {
	t.Parallel()
	everywhere(t, 3000, func(t fataler, c sim.Chooser) {
		o := anyOptions(c)
		o.Own, o.Integer, o.Deletes, o.Hides, o.Frozen = true, false, 0, 0, false
		h := sim.Generate(c, o)
		row, born := versioning.NewRow(), h.Times("obj_1")[0]
		for range 6 {
			l := anyLook(c, born+int64(c.IntN(10_000_000)))
			l.Lag, l.Answered = 0, 0
			in := h.Look("obj_1", l)
			later := int64(c.IntN(20)) * 1_000_000
			in.Lo, in.Hi = in.Lo+later, in.Hi+later
			if in.Version.Seen > 0 {
				in.Version.Seen += later
			}
			if row.Raises(&in) {
				t.Fatalf("a look of version %v is raised over the own version %v", in.Version, row.Version)
			}
			was := row.Version
			if versioning.Apply(&row, in); row.Version.At < was.At {
				t.Fatalf("the own version went back from %v to %v", was, row.Version)
			}
		}
	})
}

// What becomes of looks, and of what comes after them, where the row shows an object that was not found, or that a raised look found.
func TestRaisedInWords(t *testing.T) {
	t.Parallel()
	deleted := gone(10, false)
	deleted.Own, deleted.Still = true, true
	late := observation(t, deleted, 25*second)
	missing, found := look(20, "404").Input(), owned(30, 10, "A")
	up := look(30, "A").Input() // as it is raised
	for name, c := range map[string]struct {
		row    []versioning.Input
		in     versioning.Input
		raises bool
		status versioning.Status
	}{
		"not raised, it is stale for ever, and owes another": {[]versioning.Input{missing}, found, true, versioning.Ambiguous},
		"raised":                                   {[]versioning.Input{missing}, up, false, versioning.Applied},
		"raised once more":                         {[]versioning.Input{missing, up}, owned(40, 10, "B"), true, versioning.Ambiguous},
		"moved since it was missing":               {[]versioning.Input{missing}, owned(30, 25, "A"), false, versioning.Applied},
		"nothing is known":                         {nil, found, false, versioning.Applied},
		"an own version that went back":            {[]versioning.Input{owned(20, 15, "B")}, found, false, versioning.Ambiguous},
		"one that went back, with the same state":  {[]versioning.Input{owned(20, 15, "A")}, found, false, versioning.Stale},
		"one that was looked at within its second": {[]versioning.Input{owned(16, 15, "A")}, found, false, versioning.Stale},
		"changed within the second of that look":   {[]versioning.Input{owned(16, 15, "A")}, input(t, own(16, "B")), false, versioning.Applied},
		"missing and found by looks of one moment": {[]versioning.Input{look(16, "404").Input()}, owned(16, 15, "A"), false, versioning.Ambiguous},
		"found and missing by looks of one moment": {[]versioning.Input{owned(16, 15, "A")}, look(16, "404").Input(), false, versioning.Ambiguous},
		"deleted by an event":                      {ins(t, gone(20, false)), found, false, versioning.Ambiguous},
		"deleted for good":                         {ins(t, gone(20, true)), found, false, versioning.Stale},
		"gone again":                               {[]versioning.Input{missing, up}, look(40, "404").Input(), false, versioning.Applied},
		"a look of before":                         {[]versioning.Input{missing, up}, owned(15, 10, "B"), true, versioning.Stale},
		"moved after it was found":                 {[]versioning.Input{missing, up}, input(t, own(31, "B")), false, versioning.Applied},
		"moved before it was found":                {[]versioning.Input{missing, up}, input(t, own(25, "B")), false, versioning.Stale},
		"told late, and may have happened since":   {[]versioning.Input{missing}, ownEvent(t, 10, "B"), false, versioning.Ambiguous},
		"deleted late, which may be since":         {[]versioning.Input{missing}, late, false, versioning.Ambiguous},
		"told before the look, and looked at now":  {[]versioning.Input{missing, up}, ownEvent(t, 10, "B"), false, versioning.Stale},
	} {
		row := play(t, c.row)
		if raises := row.Raises(&c.in); raises != c.raises {
			t.Errorf("%s: raises %v", name, raises)
		}
		if d := versioning.Apply(&row, c.in); d.Status != c.status {
			t.Errorf("%s: %s: %s; want %s", name, d.Status, d.Reason, c.status)
		}
	}
	settles := found
	settles.Settles = 1
	if row := play(t, []versioning.Input{missing}); row.Raises(&settles) {
		t.Error("a look that settles is raised besides")
	}
}

// own is an event with an own version that moves with every change.
func own(at int64, state string) provider.Observation {
	o := whole(at, state)
	o.Own = true
	return o
}

// playSettled is play for a row that somebody may settle: what it has met is applied again where a look makes it forget, as whoever applies does.
func playSettled(t fataler, ins []versioning.Input) versioning.Row {
	t.Helper()
	row := versioning.NewRow()
	for i, in := range ins {
		old := row
		versioning.Apply(&row, in)
		if row.Settled < old.Settled || row.Settled == old.Settled && row.Version.Compare(old.Version) < 0 {
			t.Fatalf("the version went down from %v to %v, settled %d", old.Version, row.Version, row.Settled)
		}
		if row.Settled > old.Settled {
			for _, again := range ins[:i] {
				versioning.Apply(&row, again)
			}
		}
	}
	return row
}

// frozen is a final delete that nobody meant, of the latest time that is let in, received at any moment.
func frozen(t fataler, c sim.Chooser) versioning.Input {
	received := sim.Start + int64(c.IntN(8_000_000))
	o := gone(0, true)
	o.At = received + 3_000_000_000
	in := observation(t, o, received)
	return in
}

// An overwritten row is made of the refetch that overwrote it, and of the inputs that were received since and that do not
// have another version from before it. The order and the number of copies do not matter.
func TestSettledIsWhatCameSince(t *testing.T) {
	t.Parallel()
	everywhere(t, 2500, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		ins := append(observeAll(t, h.Events), anyLooks(c, h)...)
		for range c.IntN(3) {
			ins = append(ins, frozen(t, c))
		}
		for range 1 + c.IntN(3) {
			l := anyLook(c, sim.Start-1_000_000+int64(c.IntN(10_000_000)))
			l.Settles = true
			ins = append(ins, h.Look("obj_1", l))
		}
		var overwrite versioning.Input
		for _, in := range ins {
			switch {
			case in.Partial != "" || in.Settles < overwrite.Settles || in.Settles == 0:
			case in.Settles == overwrite.Settles && in.Lo != overwrite.Lo:
				return // two overwrites begin in one microsecond of our clock only in this test
			case in.Settles > overwrite.Settles:
				overwrite = in
			}
		}
		settled := overwrite.Settles
		got := playSettled(t, shuffled(c, ins))
		since := slices.DeleteFunc(ins, func(in versioning.Input) bool {
			stamped := in.Stamp
			if in.Look {
				stamped = in.Lo
			}
			newer := in.Partial == "" && in.Version.Compare(overwrite.Version) >= 0
			return in.Received < settled || settled > 0 && newer && stamped < overwrite.Lo
		})
		for i := range since {
			since[i].Settles = 0
		}
		want := play(t, since)
		want.Settled = settled
		if settled > 0 {
			want.OverwriteSeen = overwrite.Lo
		}
		if diff := difference(same(want), same(got)); diff != "" {
			t.Fatalf("settled at %d (-want +got):\n%s", settled, diff)
		}
	})
}

// Whatever was there, a look that a person has settle the object shows the truth without doubt, and what happens later moves it on.
func TestSettlingWins(t *testing.T) {
	t.Parallel()
	everywhere(t, 2500, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		truth := h.Truth("obj_1")
		ins := append(observeAll(t, h.Events), frozen(t, c), frozen(t, c))
		end := h.End("obj_1")
		for _, in := range ins {
			end = max(end, in.Received)
		}
		row := play(t, shuffled(c, ins))
		if !row.Version.Final {
			t.Fatalf("nobody deleted it for good: %v", row.Version)
		}
		const slowest = 4_500_000
		l := anyLook(c, end+slowest+h.Unit)
		l.Settles = true
		settling := h.Look("obj_1", l)
		d := versioning.Apply(&row, settling)
		if row.State.Hash != truth.Hash || row.Ambiguous || row.LookAfter != 0 || d.Status != versioning.Applied && d.Status != versioning.Unchanged {
			t.Fatalf("%s: %s; ambiguous %v, look after %d, shows %s, the truth is %s", d.Status, d.Reason, row.Ambiguous, row.LookAfter, row.State.JSON, truth.JSON)
		}
		for _, in := range shuffled(c, ins) {
			if d := versioning.Apply(&row, in); d.Status != versioning.Stale || row.State.Hash != truth.Hash {
				t.Fatalf("what was received before is %s: %s", d.Status, d.Reason)
			}
		}
		if row.Version.Final {
			return
		}
		next := whole(0, "next")
		next.At, next.Unit, next.Own = max(row.Version.At, settling.Hi)+1, h.Unit, h.Own
		if d := versioning.Apply(&row, observation(t, next, settling.Received+10_000_000)); d.Status != versioning.Applied || is(row.State) != "next" {
			t.Fatalf("what happens later is %s: %s", d.Status, d.Reason)
		}
	})
}

// What the outcomes of settling say.
func TestSettlingInWords(t *testing.T) {
	t.Parallel()
	settles := func(began int64, state string) versioning.Input {
		in := look(began, state).Input()
		in.Received, in.Settles = began*second, began*second
		return in
	}
	for name, c := range map[string]struct {
		row    []versioning.Input
		in     versioning.Input
		status versioning.Status
		reason string
	}{
		"a tombstone":      {ins(t, gone(10, true)), settles(50, "A"), versioning.Applied, "had this look settle the object, whatever it was (final, at 10000000"},
		"nothing":          {nil, settles(50, "A"), versioning.Applied, "no version"},
		"the same":         {ins(t, whole(10, "A")), settles(50, "A"), versioning.Unchanged, "which was the same"},
		"received before":  {[]versioning.Input{settles(50, "A")}, input(t, gone(49, true)), versioning.Stale, "received before the look (of 50000000 on our clock) that a person had settle"},
		"settled before":   {[]versioning.Input{settles(50, "A")}, settles(49, "B"), versioning.Stale, "received before"},
		"once more":        {[]versioning.Input{settles(50, "A")}, settles(50, "A"), versioning.Unchanged, "of the stored version"},
		"deleted since":    {[]versioning.Input{settles(50, "A")}, stamped(input(t, gone(51, true))), versioning.Applied, "newer"},
		"from before":      {[]versioning.Input{settles(50, "A")}, late(stamped(input(t, gone(49, true)))), versioning.Stale, "stamped it before 50000000"},
		"without a time":   {[]versioning.Input{settles(50, "A")}, late(input(t, gone(49, true))), versioning.Ambiguous, "nothing shows whether this came later"},
		"partial, before":  {[]versioning.Input{settles(50, "A")}, partial(t, 49), versioning.Stale, "received before"},
		"not to be taken":  {ins(t, gone(10, true)), unreadable(settles(50, "A")), versioning.Stale, "partial"},
		"an ambiguous row": {ins(t, whole(10, "A"), whole(10, "B")), settles(50, "B"), versioning.Applied, "settle"},
	} {
		row := play(t, c.row)
		d := versioning.Apply(&row, c.in)
		if d.Status != c.status || !strings.Contains(d.Reason, c.reason) || d.DecidedBy != row.Version {
			t.Errorf("%s: %s by %v: %s; want %s: ...%s...", name, d.Status, d.DecidedBy, d.Reason, c.status, c.reason)
		}
		if row.Settled == c.in.Settles && row.LookAfter != 0 {
			t.Errorf("%s: a look is owed after %d", name, row.LookAfter)
		}
	}
}

// stamped is an event whose version is a time, which the small numbers of these tests do not look like.
func stamped(in versioning.Input) versioning.Input {
	in.Stamp = in.Version.At + 999_999
	return in
}

// late is an input that was received when all others had been.
func late(in versioning.Input) versioning.Input {
	in.Received = 60 * second
	return in
}

// unreadable is a look whose answer carries no whole state.
func unreadable(in versioning.Input) versioning.Input {
	in.Version, in.State, in.Partial = versioning.NoVersion, versioning.NullState(false), "not found, and a counter has no place for that"
	return in
}

// observation reads an observation that was received at a time.
func observation(t fataler, o provider.Observation, received int64) versioning.Input {
	t.Helper()
	in, err := versioning.FromObservation(o, time.UnixMicro(received))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return in
}
