package versioning

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// maxAhead is how far a version may be ahead of the time of receipt, in microseconds. A version
// further ahead would block every later change until the clock reaches it.
const maxAhead = int64(time.Hour / time.Microsecond)

// InputFromObservation converts an event's observation into an input of the version rule.
// receivedAt is the event's time of receipt. It is never the version, but it limits how far ahead a
// version may be, and ends a time range that the provider's clock leaves open. It returns a
// *provider.Dead for a version that is too far ahead, and another error for an observation without
// an object (Ignored).
func InputFromObservation(o provider.Observation, receivedAt time.Time) (Input, error) {
	received := receivedAt.UnixMicro()
	if o.Ignored != "" {
		return Input{}, errors.New("read version: the observation is about no object")
	}
	if err := checkPlausible(o, received); err != nil {
		return Input{}, err
	}
	if reason := partialReason(o); reason != "" {
		lo, hi := partialTimeRange(o, received)
		return Input{Version: NoVersion, State: NullState(false), Partial: reason, TimeFrom: lo, TimeTo: hi,
			OwnVersion: o.OwnVersion, Received: received}, nil
	}
	state, before := hashStates(o)
	lo, hi := timeRange(o, received)
	return Input{Version: observedVersion(o), State: state, Before: before, OwnVersion: o.OwnVersion, TimeFrom: lo,
		TimeTo: hi, Received: received, StampedUntil: stampEnd(o)}, nil
}

// stampEnd returns the end of the unit of time that the version names. It returns 0 for a version
// that names no time: an integer version, a simulated clock, or a delete without a time.
func stampEnd(o provider.Observation) int64 {
	if o.AllowFuture || !o.HasAt || !isTime(o.At) {
		return 0
	}
	return unitEnd(o)
}

// checkPlausible rejects a version that no correct clock can have shown at the time of receipt.
func checkPlausible(o provider.Observation, received int64) error {
	switch {
	case !o.HasAt:
		return nil
	case o.At == math.MinInt64:
		return &provider.Dead{Reason: "the version of the event is the smallest 64-bit number, which is reserved for " +
			"no version"}
	case o.AllowFuture || o.At <= received+maxAhead:
		return nil
	}
	return &provider.Dead{NeedsRefetch: true,
		Reason: fmt.Sprintf("the version (%s) is more than an hour after the receipt (%s) and would block later "+
			"changes of the object; a refetch is pending; usually this machine's clock is behind or the sender's is "+
			"ahead", describeAt(o.At), describeAt(received))}
}

// partialReason returns why the observation has no whole state for the mirror, or "" when it has
// one.
func partialReason(o provider.Observation) string {
	switch {
	case o.Partial != "":
		return o.Partial
	case !o.HasAt && !(o.Final && o.Deleted):
		return "the event carries no version"
	case o.State.Kind() == canonical.Missing && !o.Deleted:
		return "the event carries no state"
	}
	return ""
}

// observedVersion returns the version of the observation. A final delete without a time has At 0,
// because Final outranks any time.
func observedVersion(o provider.Observation) Version {
	v := Version{Final: o.Final && o.Deleted, Rank: int16(min(max(o.Rank, 0), math.MaxInt16))}
	if o.HasAt {
		v.At = o.At
	}
	return v
}

// timeRange returns the provider time in which the object had this state. It is the unit of the
// clock that At was read from. If the object may change without a new version, the range ends at
// the receipt, or at the event's own time if that is later.
func timeRange(o provider.Observation, received int64) (lo, hi int64) {
	if !o.HasAt {
		return 0, max(0, received)
	}
	hi = unitEnd(o)
	if o.OwnVersion && o.MayNotAdvance {
		hi = max(hi, received, o.EventTimeEnd)
	}
	return o.At, hi
}

// partialTimeRange returns when the change behind a partial event happened: the unit of the event's
// clock, or else the receipt. An object's own version cannot be compared with the time of a
// refetch, so it is not used.
func partialTimeRange(o provider.Observation, received int64) (lo, hi int64) {
	if !o.HasAt || o.OwnVersion {
		return received, received
	}
	return o.At, unitEnd(o)
}

// unitEnd returns the last microsecond that a clock of the observation's unit shows as At.
func unitEnd(o provider.Observation) int64 {
	unit := max(o.Unit, 1)
	if o.At > math.MaxInt64-unit {
		return math.MaxInt64
	}
	return o.At + unit - 1
}

// hashStates builds the state and, if the event has a change-set, the hash of the state before it.
func hashStates(o provider.Observation) (state State, before *Hash) {
	state, buffer := newState(o.State, o.Deleted, o.IgnoredPaths)
	if o.Before.Kind() != canonical.Missing {
		// The object existed before the change, even if the change deleted it.
		compared := canonical.Options{DropNull: true, Without: o.IgnoredPaths}
		h := Hash(sha256.Sum256(canonical.AppendOverlay(append(buffer, presentPrefix), o.State, o.Before, compared)))
		before = &h
	}
	return state, before
}

// NewState builds a state from its value. A nil value and a JSON null both mean that nothing is
// known of the object. ignoredPaths lists dotted paths that the comparison of states leaves out.
func NewState(v *canonical.Value, deleted bool, ignoredPaths []string) State {
	s, _ := newState(v, deleted, ignoredPaths)
	return s
}

// newState is NewState, and also returns its text buffer for the next hash. A text is as long as
// the state and is needed only until it is hashed.
func newState(v *canonical.Value, deleted bool, ignoredPaths []string) (s State, buffer []byte) {
	text := stateText(make([]byte, 0, len(v.Raw())+32), deleted, v, canonical.Options{})
	s = State{ExactHash: sha256.Sum256(text), Deleted: deleted}
	text = stateText(text[:0], deleted, v, canonical.Options{DropNull: true, Without: ignoredPaths})
	s.Hash = sha256.Sum256(text)
	if k := v.Kind(); k != canonical.Missing && k != canonical.Null {
		s.JSON, s.Sanitized = v.Storable()
	}
	return s, text[:0]
}

// NullState returns the state of an object of which only the deleted flag is known.
func NullState(deleted bool) State {
	return NewState(nil, deleted, nil)
}

// presentPrefix is the first byte of the hashed text of a state that is not deleted.
const presentPrefix = '+'

// stateText appends the text that a state's hash covers: one byte for the deleted flag, then
// canonical JSON.
func stateText(dst []byte, deleted bool, v *canonical.Value, o canonical.Options) []byte {
	prefix := byte(presentPrefix)
	if deleted {
		prefix = '-'
	}
	return v.AppendCanonical(append(dst, prefix), o)
}
