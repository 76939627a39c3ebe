package versioning_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Any order of the inputs, with any copies, ends in the same row, even if clocks differ or events
// are lost.
func TestApply_anyOrderAndCopies_endsInSameRow(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 2500, func(t failer, c sim.Chooser) {
		o := anyOptions(c)
		o.Skew = pick[int64](c, 0, 1_500_000)
		h := sim.Generate(c, o)
		inputs := append(observeAll(t, h.Events), anyRefetches(c, h)...)
		inputs = inputs[:c.IntN(len(inputs)+1)]
		wantSameInAnyOrder(t, play(t, inputs), play(t, shuffle(c, inputs)))
	})
}

// Storing and reading the row between two inputs changes nothing, even when the tied states are
// stored without their JSON.
func TestApply_rowStoredBetweenInputs_staysEqual(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 1500, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		inputs := shuffle(c, append(observeAll(t, h.Events), anyRefetches(c, h)...))
		want, got := play(t, inputs), versioning.NewRow()
		for _, in := range inputs {
			versioning.Apply(&got, in)
			got = storeAndRead(t, got)
		}
		last := versioning.Input{Partial: "so that the row shares the JSON of its state", TimeTo: want.RefetchAfter}
		versioning.Apply(&want, last)
		versioning.Apply(&got, last)
		if diff := diffRows(want, got); diff != "" {
			t.Fatalf("row (-want +got):\n%s", diff)
		}
	})
}

// diffRows returns "" for equal rows. It calls cmp only for different rows, because cmp is slow.
func diffRows(want, got versioning.Row) string {
	if len(want.TiedStates) == 0 && len(got.TiedStates) == 0 {
		want.TiedStates, got.TiedStates = nil, nil
	}
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// storeAndRead encodes and decodes the row's tied states.
func storeAndRead(t failer, row versioning.Row) versioning.Row {
	t.Helper()
	text, err := versioning.EncodeTiedStates(&row)
	testkit.Must(t, err)
	return decodeRow(t, text, row)
}

// With correct clocks the row is right, ambiguous or has a pending refetch, once all events of the
// greatest version and all partial events arrived. Events of lower versions may be lost, and
// refetches may run at any time.
func TestApply_trueClocks_neverSilentlyWrong(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 5000, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		inputs := append(dropOlder(c, observeAll(t, h.Events), h), anyRefetches(c, h)...)
		wantNotSilentlyWrong(t, h, play(t, shuffle(c, inputs)))
	})
}

// dropOlder drops some events below the greatest version, if the last change has that version.
func dropOlder(c sim.Chooser, inputs []versioning.Input, h *sim.History) []versioning.Input {
	if h.Events[len(h.Events)-1].Partial {
		return inputs
	}
	top := inputs[len(inputs)-1].Version
	return slices.DeleteFunc(inputs, func(in versioning.Input) bool {
		return in.Partial == "" && in.Version.Compare(top) < 0 && c.IntN(4) == 0
	})
}

// A refetch that begins late enough ends every ambiguity and shows the provider's state, whatever
// came before. Late enough is after the last change, RefetchAfter and all time ranges.
func TestApply_lateRefetch_endsAmbiguity(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 2500, func(t failer, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		if h.VersionIsCounter && h.FinalState("obj_1").Deleted {
			return // a 404 says nothing about an integer version
		}
		row := play(t, shuffle(c, append(observeAll(t, h.Events), anyRefetches(c, h)...)))
		d := versioning.Apply(&row, h.Refetch("obj_1", anyRefetch(c, lateEnough(h, row))))
		wantTruth(t, h, row, d)
	})
}

// For a provider that never reuses ids no refetch is dead, at whatever time it ran and however old
// its response was.
func TestApply_idsNeverReused_refetchIsNeverDead(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 2500, func(t failer, c sim.Chooser) {
		o := anyOptions(c)
		o.Deletes, o.FinalDeletes = 30, true
		h := sim.Generate(c, o)
		row := versioning.NewRow()
		for _, in := range shuffle(c, append(observeAll(t, h.Events), anyRefetches(c, h)...)) {
			if d := versioning.Apply(&row, in); d.Status == versioning.Dead {
				t.Fatalf("%+v is dead at version %v, time range %d to %d: %s", in, row.Version, row.TimeFrom,
					row.TimeTo, d.Reason)
			}
		}
	})
}

// When all versions are distinct, no row is ambiguous and no refetch is pending, in any order.
func TestApply_distinctVersions_needNoRefetch(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 500, func(t failer, c sim.Chooser) {
		o := anyOptions(c)
		o.Partial, o.Unit, o.Gap, o.VersionMayNotAdvance = 0, 1, 3_000_000, false
		h := sim.Generate(c, o)
		row := play(t, shuffle(c, observeAll(t, h.Events)))
		if row.Ambiguous || row.RefetchAfter != 0 || row.State.Hash != h.FinalState("obj_1").Hash {
			t.Fatalf("the row is ambiguous (%v), has a pending refetch (%d), or shows %s", row.Ambiguous,
				row.RefetchAfter, row.State.JSON)
		}
	})
}

// Change-sets resolve ties: changes of one second that never return to a state have a known order.
func TestApply_changeSetsWithoutReturn_resolveTiedStates(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 1000, func(t failer, c sim.Chooser) {
		o := sim.Options{Objects: 1, Changes: 4, Contents: 1000, Unit: 1_000_000, Gap: 10_000, ChangeSets: 100,
			DuplicateEvents: 30, Noise: true}
		h := sim.Generate(c, o)
		if stateReturns(h) {
			return
		}
		updates := slices.DeleteFunc(observeAll(t, h.Events),
			func(in versioning.Input) bool { return in.Before == nil })
		row := play(t, shuffle(c, updates))
		if len(updates) > 0 && (row.Ambiguous || row.State.Hash != h.FinalState("obj_1").Hash) {
			t.Fatalf("changes without a return are ambiguous (%v) or end at %s", row.Ambiguous, row.State.JSON)
		}
	})
}

// stateReturns reports whether the object had one state at two different times, or a change changed
// nothing.
func stateReturns(h *sim.History) bool {
	seen := map[versioning.Hash]int{}
	for _, e := range h.Events {
		if n, again := seen[e.State.Hash]; again && n != int(e.OccurredAt) {
			return true
		}
		seen[e.State.Hash] = int(e.OccurredAt)
	}
	return false
}

// restorableOptions returns a provider with own versions, which go back when it is restored from a
// backup.
func restorableOptions(c sim.Chooser) sim.Options {
	o := anyOptions(c)
	o.Changes, o.ObjectVersions, o.EventsHoldOwnState, o.StatusSteps = 2+c.IntN(6), true, false, false
	switch c.IntN(3) {
	case 0:
		o.VersionMayNotAdvance, o.VersionIsCounter = true, false
	case 1:
		o.VersionMayNotAdvance, o.VersionIsCounter = false, true
	}
	return o
}

// restoredHistory returns a history whose object goes back to an earlier state, and may change
// after that.
func restoredHistory(c sim.Chooser) *sim.History {
	h := sim.Generate(c, restorableOptions(c))
	h.Restore("obj_1", h.LastChangeAt("obj_1")+1_000_000+int64(c.IntN(5_000_000)), c.IntN(len(h.ChangeTimes("obj_1"))))
	if h.Exists("obj_1", h.LastChangeAt("obj_1")) && c.IntN(2) == 0 && !h.VersionIsCounter {
		h.EditSilently("obj_1", h.LastChangeAt("obj_1")+1_000_000+int64(c.IntN(5_000_000)), true)
	}
	return h
}

// A provider was restored from a backup, and an operator overwrote the object once. No older event
// or refetch makes the row silently wrong, in any order: it is right, ambiguous, or a refetch is
// pending.
func TestApply_restoredProviderAfterOverwrite_isNeverSilentlyWrong(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 20_000, func(t failer, c sim.Chooser) {
		h := restoredHistory(c)
		const slowest = 4_500_000
		spec := anyRefetch(c, h.LastChangeAt("obj_1")+slowest+h.Unit)
		spec.Overwrites = true
		overwrite := h.Refetch("obj_1", spec)
		inputs := append(anyRefetches(c, h), overwrite)
		for _, e := range h.Events {
			if c.IntN(2) == 0 { // first delivered after the overwrite
				e.ReceivedAt = time.UnixMicro(overwrite.Received + 1 + int64(c.IntN(60_000_000)))
			}
			inputs = append(inputs, observe(t, e))
		}
		for range c.IntN(3) { // began at any time, and was appended after the overwrite
			in := h.Refetch("obj_1", anyRefetch(c, sim.Start+int64(c.IntN(int(overwrite.Received-sim.Start)))))
			in.Received = overwrite.Received + 1
			inputs = append(inputs, in)
		}
		row := playOverwritten(t, shuffle(c, inputs))
		if overwrite.Partial == "" {
			wantNotSilentlyWrong(t, h, row)
		}
	})
}

// A refetch that returns an older version than the row has, although it began later, does not
// change the row. Another refetch stays pending until an operator decides.
func TestApply_refetchReturnsOlderVersion_staysPending(t *testing.T) {
	t.Parallel()
	forManySeeds(t, 5_000, func(t failer, c sim.Chooser) {
		h := restoredHistory(c)
		row := play(t, shuffle(c, observeAll(t, h.Events)))
		truth, was := h.FinalState("obj_1"), row.State.Hash
		const slowest = 4_500_000
		began := lateEnough(h, row)
		for range 3 {
			in := h.Refetch("obj_1", anyRefetch(c, began))
			d := versioning.Apply(&row, in)
			wrong := row.State.Hash != truth.Hash
			if wrong && d.Status != versioning.Dead && row.RefetchAfter == 0 && !row.Ambiguous && !row.Version.Final {
				t.Fatalf("the row shows %s at %v after a refetch of %s at %v (%s: %s), and no refetch is pending",
					row.State.JSON, row.Version, truth.JSON, in.Version, d.Status, d.Reason)
			}
			if wrong && row.State.Hash != was {
				t.Fatalf("the row was changed to %s", row.State.JSON)
			}
			began = max(began, row.RefetchAfter) + slowest + 1_000_000
		}
	})
}
