package versioning_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// temporarilyMissingOptions returns any kind of provider, with objects that its API does not return
// for a while.
func temporarilyMissingOptions(c sim.Chooser) sim.Options {
	o := anyOptions(c)
	o.TemporarilyMissing, o.Gap = 50, pick[int64](c, 700_000, 3_000_000, 9_000_000)
	if c.IntN(4) > 0 {
		o.ObjectVersions, o.VersionMayNotAdvance = true, c.IntN(4) > 0
		o.VersionIsCounter, o.EventsHoldOwnState = false, false
	}
	return o
}

// arrival is an event, or a refetch that still has to run, with its time of receipt.
type arrival struct {
	at      int64
	in      versioning.Input
	refetch *sim.Refetch
}

// simulateArrivals returns what is received of the history's only object, in order of receipt, with
// refetches at arbitrary moments. A refetch is based on the row, or on one of its last values.
func simulateArrivals(t failer, c sim.Chooser, h *sim.History) (inputs []versioning.Input, row versioning.Row) {
	t.Helper()
	var all []arrival
	for _, in := range observeAll(t, h.Events) {
		all = append(all, arrival{at: in.Received, in: in})
	}
	for range c.IntN(5) {
		l := anyRefetch(c, pick(c, h.ChangeTimes("obj_1")...)+int64(c.IntN(4_000_000)))
		// the refetcher may be slow
		all = append(all, arrival{at: l.Began + l.Elapsed + int64(c.IntN(2))*2_000_000, refetch: &l})
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	rows := []versioning.Row{versioning.NewRow()}
	for _, a := range all {
		if a.refetch != nil {
			a.in = reversionedRefetch(h, *a.refetch, &rows[max(0, len(rows)-1-c.IntN(3))])
		}
		inputs = append(inputs, a.in)
		rows = append(rows, play(t, inputs))
	}
	return inputs, rows[len(rows)-1]
}

// reversionedRefetch runs a refetch and re-versions it if the row needs that.
func reversionedRefetch(h *sim.History, l sim.Refetch, row *versioning.Row) versioning.Input {
	in := h.Refetch("obj_1", l)
	if l.Reversioned = row.NeedsReversion(&in); l.Reversioned {
		in = h.Refetch("obj_1", l)
	}
	return in
}

// An object returns after the API did not find it, with or without changes, and its own version may
// not have advanced. After the next refetch the row shows its state, in any order of arrival, and
// no late input changes that.
func TestApply_missingObjectReturns_refetchShowsTruth(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 5000, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, temporarilyMissingOptions(c))
		if h.VersionIsCounter && h.FinalState("obj_1").Deleted {
			return // a 404 says nothing about an integer version
		}
		inputs, row := simulateArrivals(t, c, h)
		for range 2 { // the second finds nothing new
			inputs = append(inputs, reversionedRefetch(h, anyRefetch(c, lateEnough(h, row)), &row))
			d := versioning.Apply(&row, inputs[len(inputs)-1])
			wantTruth(t, h, row, d)
		}
		wantSameInAnyOrder(t, row, play(t, shuffle(c, inputs)))
	})
}

// If an event reports the last change, an object that was not found before is never silently wrong,
// at whatever moments the refetches ran. An own version that may not advance cannot be compared
// with the time of a refetch. No state occurs twice, because an event with the stored state reveals
// nothing about the changes between.
func TestApply_missingObjectReturns_neverSilentlyWrong(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 20000, func(t failer, c sim.Chooser) {
		o := temporarilyMissingOptions(c)
		o.Contents = 1_000_000
		h := sim.Generate(c, o)
		if h.Events[len(h.Events)-1].OccurredAt != h.LastChangeAt("obj_1") {
			return // the object was missing or returned without an event
		}
		_, row := simulateArrivals(t, c, h)
		wantNotSilentlyWrong(t, h, row)
	})
}

// When the API always found the object, each refetch is ordered by its own version. It does not
// matter how soon after a change the earlier refetch ran, or that the API returns an older state
// than its lag allows.
func TestRow_NeedsReversion_objectAlwaysFound_isFalse(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 3000, func(t failer, c sim.Chooser) {
		o := anyOptions(c)
		o.ObjectVersions, o.VersionIsCounter, o.EventsHoldOwnState = true, false, false
		o.Deletes, o.TemporarilyMissing = 0, 0
		h := sim.Generate(c, o)
		row, born := versioning.NewRow(), h.ChangeTimes("obj_1")[0]
		for range 6 {
			l := anyRefetch(c, born+int64(c.IntN(10_000_000)))
			l.Lag, l.ReadOffset = 0, 0
			in := h.Refetch("obj_1", l)
			later := int64(c.IntN(20)) * 1_000_000
			in.TimeFrom, in.TimeTo = in.TimeFrom+later, in.TimeTo+later
			if in.Version.Seen > 0 {
				in.Version.Seen += later
			}
			if row.NeedsReversion(&in) {
				t.Fatalf("a refetch of version %v is re-versioned over the own version %v", in.Version, row.Version)
			}
			was := row.Version
			if versioning.Apply(&row, in); row.Version.At < was.At {
				t.Fatalf("the own version went back from %v to %v", was, row.Version)
			}
		}
	})
}

// The statuses of inputs for a row of an object that was not found, or that a re-versioned refetch
// found.
func TestApply_afterMissingOrReversionedRefetch_statuses(t *testing.T) {
	t.Parallel()
	deleted := deleteEvent(10, false)
	deleted.OwnVersion, deleted.MayNotAdvance = true, true
	late := inputReceivedAt(t, deleted, 25*second)
	missing, found := refetchAt(20, "404").Input(), ownVersionRefetch(30, 10, "A")
	reversioned := refetchAt(30, "A").Input() // its version is like that of a re-versioned refetch
	for name, c := range map[string]struct {
		row            []versioning.Input
		in             versioning.Input
		needsReversion bool
		status         versioning.Status
	}{
		"a found object that is not re-versioned stays ambiguous": {[]versioning.Input{missing}, found, true,
			versioning.Ambiguous},
		"re-versioned": {[]versioning.Input{missing}, reversioned, false, versioning.Applied},
		"re-versioned again": {[]versioning.Input{missing, reversioned}, ownVersionRefetch(40, 10, "B"), true,
			versioning.Ambiguous},
		"changed after it was missing": {[]versioning.Input{missing}, ownVersionRefetch(30, 25, "A"), false,
			versioning.Applied},
		"no row": {nil, found, false, versioning.Applied},
		"own version went back": {[]versioning.Input{ownVersionRefetch(20, 15, "B")}, found, false,
			versioning.Ambiguous},
		"own version went back with the same state": {[]versioning.Input{ownVersionRefetch(20, 15, "A")}, found, false,
			versioning.Stale},
		"refetched within its second": {[]versioning.Input{ownVersionRefetch(16, 15, "A")}, found, false,
			versioning.Stale},
		"changed within the second of a refetch": {[]versioning.Input{ownVersionRefetch(16, 15, "A")},
			toInput(t, ownVersionEvent(16, "B")), false, versioning.Applied},
		"missing, then found by a refetch of the same moment": {[]versioning.Input{refetchAt(16, "404").Input()},
			ownVersionRefetch(16, 15, "A"), false, versioning.Ambiguous},
		"found, then missing by a refetch of the same moment": {[]versioning.Input{ownVersionRefetch(16, 15, "A")},
			refetchAt(16, "404").Input(), false, versioning.Ambiguous},
		"deleted by an event": {inputs(t, deleteEvent(20, false)), found, false, versioning.Ambiguous},
		"permanently deleted": {inputs(t, deleteEvent(20, true)), found, false, versioning.Stale},
		"missing again": {[]versioning.Input{missing, reversioned}, refetchAt(40, "404").Input(), false,
			versioning.Applied},
		"older refetch": {[]versioning.Input{missing, reversioned}, ownVersionRefetch(15, 10, "B"), true,
			versioning.Stale},
		"changed after it was found": {[]versioning.Input{missing, reversioned}, toInput(t, ownVersionEvent(31, "B")),
			false, versioning.Applied},
		"changed before it was found": {[]versioning.Input{missing, reversioned}, toInput(t, ownVersionEvent(25, "B")),
			false, versioning.Stale},
		"late event that may be newer than the refetch": {[]versioning.Input{missing}, lateOwnVersionEvent(t, 10, "B"),
			false, versioning.Ambiguous},
		"late delete that may be newer than the refetch": {[]versioning.Input{missing}, late, false,
			versioning.Ambiguous},
		"older event after a re-versioned refetch": {[]versioning.Input{missing, reversioned},
			lateOwnVersionEvent(t, 10, "B"), false, versioning.Stale},
	} {
		row := play(t, c.row)
		if needs := row.NeedsReversion(&c.in); needs != c.needsReversion {
			t.Errorf("%s: needs re-versioning: %v", name, needs)
		}
		if d := versioning.Apply(&row, c.in); d.Status != c.status {
			t.Errorf("%s: %s: %s; want %s", name, d.Status, d.Reason, c.status)
		}
	}
	overwriting := found
	overwriting.OverwriteAt = 1
	if row := play(t, []versioning.Input{missing}); row.NeedsReversion(&overwriting) {
		t.Error("an overwriting refetch is re-versioned too")
	}
}

// ownVersionEvent returns an event whose own version advances with every change.
func ownVersionEvent(at int64, state string) provider.Observation {
	o := stateEvent(at, state)
	o.OwnVersion = true
	return o
}

// playOverwritten is play for a row that an operator may overwrite. After an overwrite it applies
// the earlier inputs again, as the processor does.
func playOverwritten(t failer, inputs []versioning.Input) versioning.Row {
	t.Helper()
	row := versioning.NewRow()
	for i, in := range inputs {
		old := row
		versioning.Apply(&row, in)
		if row.OverwrittenAt < old.OverwrittenAt || row.OverwrittenAt == old.OverwrittenAt &&
			row.Version.Compare(old.Version) < 0 {
			t.Fatalf("the version went down from %v to %v, overwritten at %d", old.Version, row.Version,
				row.OverwrittenAt)
		}
		if row.OverwrittenAt > old.OverwrittenAt {
			for _, again := range inputs[:i] {
				versioning.Apply(&row, again)
			}
		}
	}
	return row
}

// futureFinalDelete returns an erroneous final delete, received at any moment, with a version
// almost as far in the future as is accepted.
func futureFinalDelete(t failer, c sim.Chooser) versioning.Input {
	received := sim.Start + int64(c.IntN(8_000_000))
	o := deleteEvent(0, true)
	o.At = received + 3_000_000_000
	return inputReceivedAt(t, o, received)
}

// An overwritten row consists of the overwriting refetch and of later inputs: those received after
// it, unless they have a greater version with an older time. Their order and copies do not matter.
func TestApply_overwrite_keepsOnlyLaterInputs(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 2500, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		inputs := append(observeAll(t, h.Events), anyRefetches(c, h)...)
		for range c.IntN(3) {
			inputs = append(inputs, futureFinalDelete(t, c))
		}
		for range 1 + c.IntN(3) {
			l := anyRefetch(c, sim.Start-1_000_000+int64(c.IntN(10_000_000)))
			l.Overwrites = true
			inputs = append(inputs, h.Refetch("obj_1", l))
		}
		var overwrite versioning.Input
		for _, in := range inputs {
			switch {
			case in.Partial != "" || in.OverwriteAt < overwrite.OverwriteAt || in.OverwriteAt == 0:
			case in.OverwriteAt == overwrite.OverwriteAt && in.TimeFrom != overwrite.TimeFrom:
				return // two overwrites begin in one microsecond of our clock only in this test
			case in.OverwriteAt > overwrite.OverwriteAt:
				overwrite = in
			}
		}
		overwrittenAt := overwrite.OverwriteAt
		got := playOverwritten(t, shuffle(c, inputs))
		since := slices.DeleteFunc(inputs, func(in versioning.Input) bool {
			stamped := in.StampedUntil
			if in.IsRefetch {
				stamped = in.TimeFrom
			}
			newer := in.Partial == "" && in.Version.Compare(overwrite.Version) >= 0
			return in.Received < overwrittenAt || overwrittenAt > 0 && newer && stamped < overwrite.TimeFrom
		})
		for i := range since {
			since[i].OverwriteAt = 0
		}
		want := play(t, since)
		want.OverwrittenAt = overwrittenAt
		if overwrittenAt > 0 {
			want.OverwriteBegan = overwrite.TimeFrom
		}
		wantSameInAnyOrder(t, want, got)
	})
}

// A refetch with which an operator overwrites the object shows the provider's state unambiguously,
// whatever the row was. Later changes are applied.
func TestApply_overwrite_winsOverFinalDelete(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 2500, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		truth := h.FinalState("obj_1")
		inputs := append(observeAll(t, h.Events), futureFinalDelete(t, c), futureFinalDelete(t, c))
		end := h.LastChangeAt("obj_1")
		for _, in := range inputs {
			end = max(end, in.Received)
		}
		row := play(t, shuffle(c, inputs))
		if !row.Version.Final {
			t.Fatalf("the row has no final delete: %v", row.Version)
		}
		const slowest = 4_500_000
		l := anyRefetch(c, end+slowest+h.Unit)
		l.Overwrites = true
		overwriting := h.Refetch("obj_1", l)
		d := versioning.Apply(&row, overwriting)
		if wantTruth(t, h, row, d); d.Status != versioning.Applied && d.Status != versioning.Unchanged {
			t.Fatalf("the overwrite is %s: %s", d.Status, d.Reason)
		}
		for _, in := range shuffle(c, inputs) {
			if d := versioning.Apply(&row, in); d.Status != versioning.Stale || row.State.Hash != truth.Hash {
				t.Fatalf("an input received before is %s: %s", d.Status, d.Reason)
			}
		}
		if row.Version.Final {
			return
		}
		next := stateEvent(0, "next")
		next.At, next.Unit, next.OwnVersion = max(row.Version.At, overwriting.TimeTo)+1, h.Unit, h.ObjectVersions
		if d := versioning.Apply(&row,
			inputReceivedAt(t, next, overwriting.Received+10_000_000)); d.Status != versioning.Applied ||
			stateLetter(row.State) != "next" {
			t.Fatalf("a later change is %s: %s", d.Status, d.Reason)
		}
	})
}

// The statuses and reasons of overwrites, and of inputs after them.
func TestApply_overwrite_statusesAndReasons(t *testing.T) {
	t.Parallel()
	overwrites := func(began int64, state string) versioning.Input {
		in := refetchAt(began, state).Input()
		in.Received, in.OverwriteAt = began*second, began*second
		return in
	}
	for name, c := range map[string]statusCase{
		"over a tombstone": {inputs(t, deleteEvent(10, true)), overwrites(50, "A"), versioning.Applied,
			"overwrote the object with this refetch; the version before was (final, at 10000000"},
		"nothing": {nil, overwrites(50, "A"), versioning.Applied, "no version"},
		"same state": {inputs(t, stateEvent(10, "A")), overwrites(50, "A"), versioning.Unchanged,
			"found the same state"},
		"received before": {[]versioning.Input{overwrites(50, "A")}, toInput(t, deleteEvent(49, true)),
			versioning.Stale, "received before the refetch (of 50000000 on our clock) with which an operator " +
				"overwrote"},
		"older overwrite": {[]versioning.Input{overwrites(50, "A")}, overwrites(49, "B"), versioning.Stale,
			"received before"},
		"same overwrite again": {[]versioning.Input{overwrites(50, "A")}, overwrites(50, "A"), versioning.Unchanged,
			"same version as the stored one"},
		"deleted after the overwrite": {[]versioning.Input{overwrites(50, "A")},
			withStamp(toInput(t, deleteEvent(51, true))), versioning.Applied, "newer"},
		"late, with a version from before": {[]versioning.Input{overwrites(50, "A")},
			receivedLate(withStamp(toInput(t, deleteEvent(49, true)))), versioning.Stale, "stamped it before 50000000"},
		"late, without a time": {[]versioning.Input{overwrites(50, "A")},
			receivedLate(toInput(t, deleteEvent(49, true))), versioning.Ambiguous,
			"it is unknown whether this event is newer"},
		"partial, received before": {[]versioning.Input{overwrites(50, "A")}, partialInput(t, 49), versioning.Stale,
			"received before"},
		"without a whole state": {inputs(t, deleteEvent(10, true)), withoutState(overwrites(50, "A")), versioning.Stale,
			"partial"},
		"over an ambiguous row": {inputs(t, stateEvent(10, "A"), stateEvent(10, "B")), overwrites(50, "B"),
			versioning.Applied, "overwrote"},
	} {
		row := c.apply(t, name)
		if row.OverwrittenAt == c.in.OverwriteAt && row.RefetchAfter != 0 {
			t.Errorf("%s: a refetch is pending after %d", name, row.RefetchAfter)
		}
	}
}

// withStamp returns the event as if its version were a time. The small numbers of these tests are
// not recognized as times.
func withStamp(in versioning.Input) versioning.Input {
	in.StampedUntil = in.Version.At + 999_999
	return in
}

// receivedLate returns an input that was received after all others.
func receivedLate(in versioning.Input) versioning.Input {
	in.Received = 60 * second
	return in
}

// withoutState returns a refetch whose response has no whole state.
func withoutState(in versioning.Input) versioning.Input {
	in.Version, in.State, in.Partial = versioning.NoVersion, versioning.NullState(false),
		"not found, and an integer version cannot express that"
	return in
}

// inputReceivedAt converts an observation with this time of receipt.
func inputReceivedAt(t failer, o provider.Observation, received int64) versioning.Input {
	t.Helper()
	in, err := versioning.InputFromObservation(o, time.UnixMicro(received))
	testkit.Must(t, err)
	return in
}
