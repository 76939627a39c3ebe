package versioning

import (
	"fmt"
	"math"
)

// ReasonFoundAlive is the reason of a dead refetch that found an object alive after its final
// delete. The same refetch applied before the delete is not dead; the row is the same in both
// orders.
const ReasonFoundAlive = "found alive at the provider after a final delete; an operator must review it"

// ReasonOlderVersion begins the reason of a refetch that does not change the row, because the API
// responded with an older version.
const ReasonOlderVersion = "the provider's API returned an older version"

// NewRow returns the row of an object without any input.
func NewRow() Row {
	return Row{Version: NoVersion, State: NullState(false), TimeFrom: math.MinInt64, TimeTo: math.MinInt64}
}

// Apply decides one input against a row and updates the row. It is pure: no clock, no store. The
// order, repetition and batching of the inputs do not matter for the row's version, tied states,
// time range, state, deleted flag and ambiguity. RefetchAfter may depend on the order, because the
// row does not remember which input cleared it. When an input raises OverwrittenAt, the caller must
// apply again the inputs that were received since and already applied; only then the order does not
// matter.
//
// A row read from a store has the JSON of its state only in State. Apply copies it to the tied
// states that share it.
func Apply(row *Row, in Input) Decision {
	row.shareJSON()
	if in.Received < row.OverwrittenAt {
		return row.decide(Stale, "received before the refetch (of "+describeAt(row.OverwrittenAt)+
			" on our clock) with which an operator overwrote this object")
	}
	if in.Partial != "" {
		return applyPartial(row, in)
	}
	if in.OverwriteAt > row.OverwrittenAt {
		return row.overwriteBy(in)
	}
	if row.foundAliveAfterDelete(in) {
		return row.decide(Dead, ReasonFoundAlive)
	}
	c := in.Version.Compare(row.Version)
	if c >= 0 && in.overwriteBound() < row.OverwriteBegan {
		return row.decideBeforeOverwrite(in)
	}
	old := priorRow{state: row.State, version: row.Version, ambiguous: row.Ambiguous, timeTo: row.TimeTo,
		sharesSecond: row.sharesSecond(in, c)}
	orderUnknown := old.sharesSecond || row.orderUnknown(in, c)
	if c >= 0 {
		row.addInput(in, c)
	}
	if row.isOlderResponse(in, c) {
		row.requestRefetchAfter(in.TimeTo)
		return row.decide(Ambiguous, ReasonOlderVersion+" ("+describeAt(in.Version.At)+") than the stored one ("+
			row.Version.String()+"); a refetch is pending")
	}
	row.updateRefetchAfter(in, c, orderUnknown, max(old.timeTo, in.TimeTo))
	return row.decideStatus(in, c, orderUnknown, old)
}

// overwriteBy drops all of the row's history before an overwriting refetch. The row cannot tell
// which of its inputs were received after that refetch began, so the caller must apply those inputs
// again.
func (row *Row) overwriteBy(in Input) Decision {
	old := *row
	row.OverwrittenAt, row.OverwriteBegan, row.RefetchAfter = in.OverwriteAt, in.TimeFrom, 0
	row.addInput(in, 1)
	if old.Version != NoVersion && old.State.ExactHash == row.State.ExactHash && !old.Ambiguous {
		return row.decide(Unchanged, "an operator overwrote the object with this refetch, which found the same state ("+
			old.Version.String()+")")
	}
	return row.decide(Applied, "an operator overwrote the object with this refetch; the version before was ("+
		old.Version.String()+")")
}

// decideBeforeOverwrite decides an input that would change the row, but may describe a change from
// before the overwriting refetch. A provider that was restored from a backup causes this: its
// versions from before the restore arrive late. An input that may still be newer makes a refetch
// pending.
func (row *Row) decideBeforeOverwrite(in Input) Decision {
	if in.StampedUntil != 0 || in.IsRefetch && in.TimeTo < row.OverwriteBegan {
		return row.decide(Stale, "the provider stamped it before "+describeAt(row.OverwriteBegan)+
			", the start of the refetch with which an operator overwrote the object")
	}
	row.requestRefetchAfter(max(in.Received, in.TimeTo))
	return row.decide(Ambiguous, "an operator overwrote the object from the provider, and it is unknown whether this "+
		"event is newer; a refetch is pending")
}

// overwriteBound returns the provider time that must not be before the start of the overwriting
// refetch. An input with an earlier time cannot change the row.
func (in *Input) overwriteBound() int64 {
	if in.IsRefetch {
		return in.TimeFrom
	}
	return in.StampedUntil
}

// isOlderResponse reports whether a refetch returned an older own version than the row has,
// although it began after everything that the row contains. The API lags behind its webhooks, or
// the provider was restored from a backup.
func (row *Row) isOlderResponse(in Input, c int) bool {
	if row.Version.Final || row.hasRefetchVersion() || !in.IsRefetch || !in.OwnVersion ||
		in.State.Hash == row.State.Hash {
		return false
	}
	return c < 0 && in.Version.At < row.Version.At && row.TimeTo < in.TimeFrom
}

// foundAliveAfterDelete reports whether a refetch found an object alive after its final delete. The
// refetch must have begun after the delete, and its own version, if any, must not be older. Any
// other refetch may have missed the delete.
func (row *Row) foundAliveAfterDelete(in Input) bool {
	return row.Version.Final && in.IsRefetch && !in.State.Deleted && in.TimeFrom > row.TimeTo &&
		!(in.OwnVersion && in.Version.At < row.Version.At)
}

// priorRow holds the values of the row from before the input that a decision needs.
type priorRow struct {
	state     State
	version   Version
	ambiguous bool
	timeTo    int64
	// sharesSecond is the result of Row.sharesSecond.
	sharesSecond bool
}

// shareJSON copies the JSON of the row's state to the tied states with the same exact hash, which
// were stored without it.
func (row *Row) shareJSON() {
	for i := range row.TiedStates {
		m := &row.TiedStates[i].State
		if m.JSON == nil && m.ExactHash == row.State.ExactHash {
			m.JSON, m.Sanitized = row.State.JSON, row.State.Sanitized
		}
	}
}

// applyPartial makes a refetch pending for an input without a whole state, unless a later refetch
// was already applied.
func applyPartial(row *Row, in Input) Decision {
	if row.Version.Final {
		return row.decide(Stale, "partial, and older than the final delete ("+row.Version.String()+")")
	}
	if row.Version.Seen > 0 && in.TimeTo < row.Version.Seen {
		return row.decide(Stale, "partial, and a refetch that began later has been applied ("+row.Version.String()+")")
	}
	row.requestRefetchAfter(in.TimeTo)
	return row.decide(Ambiguous, "partial: "+in.Partial+"; a refetch is pending")
}

// orderUnknown reports whether a refetch and an event differ in state while their time ranges do
// not confirm the order of their versions. An event whose version may not advance is dropped when
// it loses to a refetch, and may still be newer than the next refetch. For such an event an equal
// state proves nothing either.
func (row *Row) orderUnknown(in Input, c int) bool {
	mayNotAdvance := in.OwnVersion && !in.IsRefetch && c < 0 && row.hasRefetchVersion()
	switch {
	case in.State.Hash == row.State.Hash && !mayNotAdvance || !in.IsRefetch && !row.HasRefetch():
		return false
	case row.Version.Final || in.Version.Final:
		return false
	case in.OwnVersion && in.Version.At != row.Version.At && !row.hasRefetchVersion(): // own versions give the order
		return false
	}
	return c < 0 && in.TimeTo >= row.TimeFrom || c > 0 && row.TimeTo >= in.TimeFrom
}

// sharesSecond reports whether one of two events names a whole second and the other a moment within
// it, so that their order is unknown. The losing event may be newer than the event that arrives
// next, so equal states prove nothing.
func (row *Row) sharesSecond(in Input, c int) bool {
	const second = 1_000_000
	lower, end, upper := row.Version, row.TimeTo, in.Version
	if c < 0 {
		lower, end, upper = in.Version, in.TimeTo, row.Version
	}
	if lower.Final || upper.Final || lower.At%second != 0 || end < lower.At+second-1 || !lower.IsTime() {
		return false
	}
	return upper.At > lower.At && upper.At < lower.At+second && !in.IsRefetch && !row.HasRefetch()
}

// HasRefetch reports whether one of the tied states came from a refetch.
func (row *Row) HasRefetch() bool {
	for _, m := range row.TiedStates {
		if m.FromRefetch {
			return true
		}
	}
	return false
}

// addInput sets a greater version or joins an equal one, and resolves the tied states.
func (row *Row) addInput(in Input, c int) {
	if c > 0 {
		row.Version, row.TiedStates, row.Overflow = in.Version, nil, false
	}
	row.join(TiedState{Before: in.Before, State: in.State, TimeFrom: in.TimeFrom, TimeTo: in.TimeTo,
		FromRefetch: in.IsRefetch})
	row.State, row.Ambiguous = resolveTiedStates(row.TiedStates)
	row.Ambiguous = row.Ambiguous || row.Overflow
	row.TimeFrom, row.TimeTo = hull(row.TiedStates)
}

// updateRefetchAfter raises RefetchAfter to end when the order is unknown. It clears RefetchAfter
// for an unambiguous input that begins after it, and for a final version.
func (row *Row) updateRefetchAfter(in Input, c int, orderUnknown bool, end int64) {
	switch {
	case row.Version.Final:
		row.RefetchAfter = 0
	case orderUnknown || c >= 0 && row.Ambiguous:
		row.requestRefetchAfter(end)
	case c >= 0 && in.TimeFrom > row.RefetchAfter:
		row.RefetchAfter = 0
	}
}

// requestRefetchAfter makes a refetch pending that must begin after at. RefetchAfter 0 means none,
// so an earlier time (a small integer version) is raised to 1.
func (row *Row) requestRefetchAfter(at int64) {
	row.RefetchAfter = max(row.RefetchAfter, at, 1)
}

// decideStatus returns the status and reason of an input that was applied.
func (row *Row) decideStatus(in Input, c int, orderUnknown bool, old priorRow) Decision {
	switch {
	case c >= 0 && row.Ambiguous:
		return row.decide(Ambiguous, row.tiedReason())
	case old.sharesSecond:
		return row.decide(Ambiguous, "one event has whole seconds and another a moment within the same second, so "+
			"it is unknown which is newer; the greater version is shown ("+row.Version.String()+") and a refetch is "+
			"pending")
	case orderUnknown:
		return row.decide(Ambiguous, "it is unknown whether a refetch or an event is newer; the greater version is "+
			"shown ("+row.Version.String()+") and a refetch is pending")
	case c < 0:
		return row.decide(Stale, "older than the stored version ("+row.Version.String()+")")
	case old.state.ExactHash == row.State.ExactHash && (c > 0 || !old.ambiguous):
		return row.decide(Unchanged, unchangedReason(c, old))
	}
	return row.decide(Applied, appliedReason(in, c, old))
}

func (row *Row) decide(status Status, reason string) Decision {
	return Decision{Status: status, Reason: reason, DecidedBy: row.Version}
}

func (row *Row) tiedReason() string {
	if row.Overflow {
		return fmt.Sprintf("more than %d different states of one version; the object needs a refetch", maxTiedStates)
	}
	states := map[Hash]bool{}
	for _, m := range row.TiedStates {
		states[m.State.Hash] = true
	}
	return fmt.Sprintf("the order of %d different states of one version is not known; the object needs a refetch",
		len(states))
}

func unchangedReason(c int, old priorRow) string {
	if c > 0 {
		return "newer than the stored version (" + old.version.String() + ") and with the same content"
	}
	return "same version as the stored one, and no change of content"
}

func appliedReason(in Input, c int, old priorRow) string {
	switch {
	case c > 0 && old.version == NoVersion:
		return "the first complete state of this object"
	case c > 0 && in.IsRefetch:
		return "a refetch, newer than the stored version (" + old.version.String() + ")"
	case c > 0:
		return "newer than the stored version (" + old.version.String() + ")"
	case old.ambiguous:
		return "same version as the stored one; now the order is known"
	}
	return "same version as the stored one; the change-sets of its events show that this state is the last"
}
