package versioning_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Any permutation of a set of inputs with any doubling ends in the same row. Clocks may be skewed and events lost: the
// row is a function of what arrived, right or wrong.
func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	everywhere(t, 2500, func(t fataler, c sim.Chooser) {
		o := anyOptions(c)
		o.Skew = pick[int64](c, 0, 1_500_000)
		h := sim.Generate(c, o)
		ins := append(observeAll(t, h.Events), anyLooks(c, h)...)
		ins = ins[:c.IntN(len(ins)+1)]
		want, got := play(t, ins), play(t, shuffled(c, ins))
		if diff := difference(same(want), same(got)); diff != "" {
			t.Fatalf("another order, another row (-want +got):\n%s", diff)
		}
	})
}

// Storing and reading the row between any two inputs changes nothing, also where the set is stored without states.
func TestStoringDoesNotMatter(t *testing.T) {
	t.Parallel()
	everywhere(t, 1500, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		ins := shuffled(c, append(observeAll(t, h.Events), anyLooks(c, h)...))
		want, got := play(t, ins), versioning.NewRow()
		for _, in := range ins {
			versioning.Apply(&got, in)
			got = stored(t, got)
		}
		last := versioning.Input{Partial: "to make the row share its state's JSON", Hi: want.LookAfter}
		versioning.Apply(&want, last)
		versioning.Apply(&got, last)
		if diff := difference(want, got); diff != "" {
			t.Fatalf("row (-want +got):\n%s", diff)
		}
	})
}

// difference is empty for equal rows. cmp is asked only about others, since it is slow.
func difference(want, got versioning.Row) string {
	if len(want.Set) == 0 && len(got.Set) == 0 {
		want.Set, got.Set = nil, nil
	}
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// stored is a row after a way through the store, whose set has its states.
func stored(t fataler, row versioning.Row) versioning.Row {
	t.Helper()
	text, err := versioning.EncodeSet(&row)
	if err != nil {
		t.Fatalf("%v", err)
	}
	row.Set = nil
	if err := versioning.DecodeSet(text, &row); err != nil {
		t.Fatalf("%v", err)
	}
	return row
}

// Wrong is never silent: with true clocks, once all events of the greatest version are there, and every event that only
// hints, the row is right, ambiguous, or owes a look. Events of lower versions may be lost, looks may be taken at any time.
func TestWrongIsNeverSilent(t *testing.T) {
	t.Parallel()
	everywhere(t, 5000, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		ins := append(lose(c, observeAll(t, h.Events), h), anyLooks(c, h)...)
		row := play(t, shuffled(c, ins))
		if row.Ambiguous || row.LookAfter != 0 {
			return
		}
		if truth := h.Truth("obj_1"); row.State.Hash != truth.Hash {
			t.Fatalf("the row shows %s at %v and does not say that it may be wrong; the truth is %s", row.State.JSON, row.Version, truth.JSON)
		}
	})
}

// lose drops some events of lower versions than the greatest, if that is the version of the last change.
func lose(c sim.Chooser, ins []versioning.Input, h *sim.History) []versioning.Input {
	if h.Events[len(h.Events)-1].Partial {
		return ins
	}
	top := ins[len(ins)-1].Version
	return slices.DeleteFunc(ins, func(in versioning.Input) bool {
		return in.Partial == "" && in.Version.Compare(top) < 0 && c.IntN(4) == 0
	})
}

// A look that begins late enough (after the last change, what is owed and every window seen) settles everything: no
// doubt is left and the truth is shown, whatever came before it.
func TestLateLookSettles(t *testing.T) {
	t.Parallel()
	everywhere(t, 2500, func(t fataler, c sim.Chooser) {
		h := sim.Generate(c, anyOptions(c))
		truth := h.Truth("obj_1")
		if h.Integer && truth.Deleted {
			return // not found says nothing about a counter
		}
		row := play(t, shuffled(c, append(observeAll(t, h.Events), anyLooks(c, h)...)))
		const slowest, second = 4_500_000, 1_000_000
		began := max(row.LookAfter, row.Hi, h.End("obj_1")) + slowest + second + h.Unit
		d := versioning.Apply(&row, h.Look("obj_1", anyLook(c, began)))
		if row.Ambiguous || row.LookAfter != 0 {
			t.Fatalf("after a late look (%+v) the row is ambiguous (%v) or owes a look (%d)", d, row.Ambiguous, row.LookAfter)
		}
		if row.State.Hash != truth.Hash {
			t.Fatalf("after a late look (%+v) the row shows %s, the truth is %s", d, row.State.JSON, truth.JSON)
		}
	})
}

// A provider that gives no id again is never said to have done so, whenever it was looked at and however old its answers may be.
func TestNobodyIsFoundAliveByALookOfBefore(t *testing.T) {
	t.Parallel()
	everywhere(t, 2500, func(t fataler, c sim.Chooser) {
		o := anyOptions(c)
		o.Deletes, o.Final = 30, true
		h := sim.Generate(c, o)
		row := versioning.NewRow()
		for _, in := range shuffled(c, append(observeAll(t, h.Events), anyLooks(c, h)...)) {
			if d := versioning.Apply(&row, in); d.Status == versioning.Dead {
				t.Fatalf("%+v is dead beside version %v, windows %d to %d: %s", in, row.Version, row.Lo, row.Hi, d.Reason)
			}
		}
	})
}

// Where versions tell everything apart nothing is ever ambiguous and no look is owed, in any order.
func TestDistinctVersionsOweNothing(t *testing.T) {
	t.Parallel()
	everywhere(t, 500, func(t fataler, c sim.Chooser) {
		o := anyOptions(c)
		o.Partial, o.Unit, o.Gap, o.Still = 0, 1, 3_000_000, false
		h := sim.Generate(c, o)
		row := play(t, shuffled(c, observeAll(t, h.Events)))
		if row.Ambiguous || row.LookAfter != 0 || row.State.Hash != h.Truth("obj_1").Hash {
			t.Fatalf("the row is ambiguous (%v), owes a look (%d), or shows %s", row.Ambiguous, row.LookAfter, row.State.JSON)
		}
	})
}

// Change-sets are worth something: whole walks of one second without a return are told apart from each other.
func TestChangeSetsSettleTies(t *testing.T) {
	t.Parallel()
	everywhere(t, 1000, func(t fataler, c sim.Chooser) {
		o := sim.Options{Objects: 1, Changes: 4, Contents: 1000, Unit: 1_000_000, Gap: 10_000, ChangeSets: 100, Twins: 30, Noise: true}
		h := sim.Generate(c, o)
		if returns(h) {
			return
		}
		updates := slices.DeleteFunc(observeAll(t, h.Events), func(in versioning.Input) bool { return in.Before == nil })
		row := play(t, shuffled(c, updates))
		if len(updates) > 0 && (row.Ambiguous || row.State.Hash != h.Truth("obj_1").Hash) {
			t.Fatalf("a walk without return is ambiguous (%v) or ends at %s", row.Ambiguous, row.State.JSON)
		}
	})
}

// returns: an object was the same at two different times, or nothing changed at some change.
func returns(h *sim.History) bool {
	seen := map[versioning.Hash]int{}
	for _, e := range h.Events {
		if n, again := seen[e.State.Hash]; again && n != int(e.Happened) {
			return true
		}
		seen[e.State.Hash] = int(e.Happened)
	}
	return false
}

// restorable is a provider with versions of its own, where a restored backup takes them back.
func restorable(c sim.Chooser) sim.Options {
	o := anyOptions(c)
	o.Changes, o.Own, o.Frozen, o.Steps = 2+c.IntN(6), true, false, false
	switch c.IntN(3) {
	case 0:
		o.Still, o.Integer = true, false
	case 1:
		o.Still, o.Integer = false, true
	}
	return o
}

// restored is a history whose object goes back to an earlier moment, and may change after that.
func restored(c sim.Chooser) *sim.History {
	h := sim.Generate(c, restorable(c))
	h.Restore("obj_1", h.End("obj_1")+1_000_000+int64(c.IntN(5_000_000)), c.IntN(len(h.Times("obj_1"))))
	if h.There("obj_1", h.End("obj_1")) && c.IntN(2) == 0 && !h.Integer {
		h.Edit("obj_1", h.End("obj_1")+1_000_000+int64(c.IntN(5_000_000)), true)
	}
	return h
}

// After a provider was restored and an operator overwrote the object once, no event or refetch from before makes the row wrong
// in silence, in whatever order they arrive: it is right, ambiguous, or a refetch is pending.
func TestApply_restoredProviderAfterOverwrite_isNeverSilentlyWrong(t *testing.T) {
	t.Parallel()
	everywhere(t, 20_000, func(t fataler, c sim.Chooser) {
		h := restored(c)
		const slowest = 4_500_000
		decided := anyLook(c, h.End("obj_1")+slowest+h.Unit)
		decided.Settles = true
		overwrite := h.Look("obj_1", decided)
		ins := append(anyLooks(c, h), overwrite)
		for _, e := range h.Events {
			if c.IntN(2) == 0 { // delivered for the first time after the overwrite
				e.ReceivedAt = microseconds(overwrite.Received + 1 + int64(c.IntN(60_000_000)))
			}
			ins = append(ins, observe(t, e))
		}
		for range c.IntN(3) { // begun at any time, and appended after the overwrite
			in := h.Look("obj_1", anyLook(c, sim.Start+int64(c.IntN(int(overwrite.Received-sim.Start)))))
			in.Received = overwrite.Received + 1
			ins = append(ins, in)
		}
		row := playSettled(t, shuffled(c, ins))
		if row.Ambiguous || row.LookAfter != 0 || overwrite.Partial != "" {
			return
		}
		if truth := h.Truth("obj_1"); row.State.Hash != truth.Hash {
			t.Fatalf("the row shows %s at %v and does not say that it may be wrong; the provider has %s",
				row.State.JSON, row.Version, truth.JSON)
		}
	})
}

// A refetch that answers an older version than the row has, though it began later, does not change the row, and is followed by
// another refetch until an operator decides.
func TestApply_refetchAnswersAnOlderVersion_staysPending(t *testing.T) {
	t.Parallel()
	everywhere(t, 5_000, func(t fataler, c sim.Chooser) {
		h := restored(c)
		row := play(t, shuffled(c, observeAll(t, h.Events)))
		truth, was := h.Truth("obj_1"), row.State.Hash
		const slowest = 4_500_000
		began := max(row.LookAfter, row.Hi, h.End("obj_1")) + slowest + 1_000_000 + h.Unit
		for range 3 {
			in := h.Look("obj_1", anyLook(c, began))
			d := versioning.Apply(&row, in)
			wrong := row.State.Hash != truth.Hash
			if wrong && d.Status != versioning.Dead && row.LookAfter == 0 && !row.Ambiguous && !row.Version.Final {
				t.Fatalf("the row shows %s at %v after a refetch of %s at %v (%s: %s), and no other is pending",
					row.State.JSON, row.Version, truth.JSON, in.Version, d.Status, d.Reason)
			}
			if wrong && row.State.Hash != was {
				t.Fatalf("the row was changed to %s", row.State.JSON)
			}
			began = max(began, row.LookAfter) + slowest + 1_000_000
		}
	})
}

// microseconds is the time of a number of microseconds.
func microseconds(us int64) time.Time { return time.UnixMicro(us) }
