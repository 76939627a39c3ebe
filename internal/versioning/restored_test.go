package versioning_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

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
