package versioning_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

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
