package versioning

import (
	"fmt"
	"math"
)

// FoundAlive is why a look is dead that has found alive what was deleted for good. Applied before the delete it is not, and the row is the same in the end.
const FoundAlive = "found alive at the provider after a final delete; a person must look"

// WentBack begins the reason of a refetch that the row does not follow because the API answered an older version.
const WentBack = "the provider's API answers an older version"

// NewRow is the row of an object that nothing is known of yet.
func NewRow() Row {
	return Row{Version: NoVersion, State: NullState(false), Lo: math.MinInt64, Hi: math.MinInt64}
}

// Apply decides one input against a row and changes the row accordingly. It is pure: no clock, no store. Whatever the
// order, doubling and batching of a set of inputs, the row ends with the same version, set, windows, state, deletion and
// ambiguity; LookAfter may depend on the order, since the row does not remember what has cleared it. Where an input raises
// Settled, that holds if the inputs that were received since and met before are applied again.
//
// A row that was read from a store has the JSON of its state only in State; Apply gives it to the members that share it.
func Apply(row *Row, in Input) Decision {
	row.shareJSON()
	if in.Received < row.Settled {
		return row.decide(Stale, "received before the look (of "+describeAt(row.Settled)+" on our clock) that a person had settle this object")
	}
	if in.Partial != "" {
		return applyPartial(row, in)
	}
	if in.Settles > row.Settled {
		return row.settleBy(in)
	}
	if row.resurrects(in) {
		return row.decide(Dead, FoundAlive)
	}
	c := in.Version.Compare(row.Version)
	if c >= 0 && in.earliest() < row.OverwriteSeen {
		return row.beforeOverwrite(in)
	}
	old := before{state: row.State, version: row.Version, ambiguous: row.Ambiguous, hi: row.Hi, mixed: row.sharesSecond(in, c)}
	doubt := old.mixed || row.doubts(in, c)
	if c >= 0 {
		row.take(in, c)
	}
	if row.wentBack(in, c) {
		row.raiseLook(in.Hi)
		return row.decide(Ambiguous, WentBack+" ("+describeAt(in.Version.At)+") than the stored one ("+
			row.Version.String()+"); a refetch is pending")
	}
	row.oweLook(in, c, doubt, max(old.hi, in.Hi))
	return row.outcome(in, c, doubt, old)
}

// settleBy makes a row forget what it has met before a look that a person has win over it. Of that the row cannot tell what was received since, and would not be
// forgotten: whoever applies such a look applies those inputs again after it.
func (row *Row) settleBy(in Input) Decision {
	old := *row
	row.Settled, row.OverwriteSeen, row.LookAfter = in.Settles, in.Lo, 0
	row.take(in, 1)
	if old.Version != NoVersion && old.State.Exact == row.State.Exact && !old.Ambiguous {
		return row.decide(Unchanged, "a person had this look settle the object, which was the same ("+old.Version.String()+")")
	}
	return row.decide(Applied, "a person had this look settle the object, whatever it was ("+old.Version.String()+")")
}

// beforeOverwrite decides an input that would change the row, and does not show that it happened after the
// refetch that overwrote the object. Such inputs come from a provider that was restored from a backup: its versions from
// before the restore arrive late. An input that may still be news is a reason to refetch.
func (row *Row) beforeOverwrite(in Input) Decision {
	if in.Stamp != 0 || in.Look && in.Hi < row.OverwriteSeen {
		return row.decide(Stale, "the provider stamped it before "+describeAt(row.OverwriteSeen)+
			", when the refetch began with which an operator overwrote the object")
	}
	row.raiseLook(max(in.Received, in.Hi))
	return row.decide(Ambiguous, "an operator overwrote the object from the provider, and nothing shows whether this came later; "+
		"a refetch is pending")
}

// earliest returns the provider time up to which an overwriting refetch may begin if the input is to
// change the row after it.
func (in *Input) earliest() int64 {
	if in.Look {
		return in.Lo
	}
	return in.Stamp
}

// wentBack tells whether a refetch answers an older version of the object's own than the row has, although it began after
// everything that the row contains. The API lags behind its webhooks, or the provider was restored from a backup.
func (row *Row) wentBack(in Input, c int) bool {
	if row.Version.Final || row.onlySeen() || !in.Look || !in.Own || in.State.Hash == row.State.Hash {
		return false
	}
	return c < 0 && in.Version.At < row.Version.At && row.Hi < in.Lo
}

// resurrects says whether a look has found alive what was deleted for good: one that began after the delete, and whose own version, if it has one, is not from
// before. Any other may just not know of the delete.
func (row *Row) resurrects(in Input) bool {
	return row.Version.Final && in.Look && !in.State.Deleted && in.Lo > row.Hi && !(in.Own && in.Version.At < row.Version.At)
}

// before is what an outcome must know of the row as it was.
type before struct {
	state     State
	version   Version
	ambiguous bool
	hi        int64
	// mixed: the version of the row shares a second with that of the input (sharesSecond).
	mixed bool
}

// shareJSON gives the JSON of the row's state to the members of the same exact state that were stored without it.
func (row *Row) shareJSON() {
	for i := range row.Set {
		m := &row.Set[i].State
		if m.JSON == nil && m.Exact == row.State.Exact {
			m.JSON, m.Repaired = row.State.JSON, row.State.Repaired
		}
	}
}

// applyPartial keeps an input that carries no whole state as a reason to look, unless a look has seen past it.
func applyPartial(row *Row, in Input) Decision {
	if row.Version.Final {
		return row.decide(Stale, "partial, and older than the final delete ("+row.Version.String()+")")
	}
	if row.Version.Seen > 0 && in.Hi < row.Version.Seen {
		return row.decide(Stale, "partial, and a look that began later has been applied ("+row.Version.String()+")")
	}
	row.raiseLook(in.Hi)
	return row.decide(Ambiguous, "partial: "+in.Partial+"; a look at the provider is owed")
}

// doubts tells whether a look and an event differ in state while their windows do not confirm the order of their versions. What loses to a look by a version that may
// stand still is forgotten, and may yet be later than the next look: there the same state is no proof either.
func (row *Row) doubts(in Input, c int) bool {
	still := in.Own && !in.Look && c < 0 && row.onlySeen()
	switch {
	case in.State.Hash == row.State.Hash && !still || !in.Look && !row.HasLook():
		return false
	case row.Version.Final || in.Version.Final:
		return false
	case in.Own && in.Version.At != row.Version.At && !row.onlySeen(): // own versions tell the order
		return false
	}
	return c < 0 && in.Hi >= row.Lo || c > 0 && row.Hi >= in.Lo
}

// sharesSecond tells whether of the versions of two events one names a whole second and the other a moment within it, so
// their order is not known. The one that loses may be later than an event that arrives next, so equal states prove nothing.
func (row *Row) sharesSecond(in Input, c int) bool {
	const second = 1_000_000
	lower, end, upper := row.Version, row.Hi, in.Version
	if c < 0 {
		lower, end, upper = in.Version, in.Hi, row.Version
	}
	if lower.Final || upper.Final || lower.At%second != 0 || end < lower.At+second-1 || !lower.Timed() {
		return false
	}
	return upper.At > lower.At && upper.At < lower.At+second && !in.Look && !row.HasLook()
}

// HasLook says whether one of the row's contents came from a look.
func (row *Row) HasLook() bool {
	for _, m := range row.Set {
		if m.Look {
			return true
		}
	}
	return false
}

// take makes a greater version the row's, or joins an equal one, and settles the set.
func (row *Row) take(in Input, c int) {
	if c > 0 {
		row.Version, row.Set, row.Overflow = in.Version, nil, false
	}
	row.join(Member{Before: in.Before, State: in.State, Lo: in.Lo, Hi: in.Hi, Look: in.Look})
	row.State, row.Ambiguous = settle(row.Set)
	row.Ambiguous = row.Ambiguous || row.Overflow
	row.Lo, row.Hi = hull(row.Set)
}

// oweLook moves LookAfter: raised to end by doubt, cleared by an observation that begins after it and leaves none.
func (row *Row) oweLook(in Input, c int, doubt bool, end int64) {
	switch {
	case row.Version.Final:
		row.LookAfter = 0
	case doubt || c >= 0 && row.Ambiguous:
		row.raiseLook(end)
	case c >= 0 && in.Lo > row.LookAfter:
		row.LookAfter = 0
	}
}

// raiseLook owes a look that begins after at. Since 0 means that none is owed, an earlier time (a small integer version)
// counts as 1.
func (row *Row) raiseLook(at int64) {
	row.LookAfter = max(row.LookAfter, at, 1)
}

// outcome puts what happened into a status and words.
func (row *Row) outcome(in Input, c int, doubt bool, old before) Decision {
	switch {
	case c >= 0 && row.Ambiguous:
		return row.decide(Ambiguous, row.tieReason())
	case old.mixed:
		return row.decide(Ambiguous, "one event tells whole seconds and another a moment within the same second, so nothing proves "+
			"which came later; the version decides ("+row.Version.String()+") and a refetch is pending")
	case doubt:
		return row.decide(Ambiguous, "nothing proves which came later, a look or an event; the version decides ("+
			row.Version.String()+") and a look is owed")
	case c < 0:
		return row.decide(Stale, "older than the stored version ("+row.Version.String()+")")
	case old.state.Exact == row.State.Exact && (c > 0 || !old.ambiguous):
		return row.decide(Unchanged, unchangedReason(c, old))
	}
	return row.decide(Applied, appliedReason(in, c, old))
}

func (row *Row) decide(status Status, reason string) Decision {
	return Decision{Status: status, Reason: reason, DecidedBy: row.Version}
}

func (row *Row) tieReason() string {
	if row.Overflow {
		return fmt.Sprintf("more than %d different contents of one version; a look is owed", maxSet)
	}
	states := map[Hash]bool{}
	for _, m := range row.Set {
		states[m.State.Hash] = true
	}
	return fmt.Sprintf("the order of %d different states of one version is not known; a look is owed", len(states))
}

func unchangedReason(c int, old before) string {
	if c > 0 {
		return "newer than the stored version (" + old.version.String() + ") and of the same content"
	}
	return "of the stored version, and its content does not change the stored state"
}

func appliedReason(in Input, c int, old before) string {
	switch {
	case c > 0 && old.version == NoVersion:
		return "the first whole state of this object"
	case c > 0 && in.Look:
		return "a look at the provider, newer than the stored version (" + old.version.String() + ")"
	case c > 0:
		return "newer than the stored version (" + old.version.String() + ")"
	case old.ambiguous:
		return "of the stored version, and settles the order of its states"
	}
	return "of the stored version, and the change-sets of its events put this state last"
}
