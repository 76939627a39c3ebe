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

// maxAhead is how far a version may lie ahead of the time of receipt, in microseconds: further ahead it would freeze the
// object until the clock gets there.
const maxAhead = int64(time.Hour / time.Microsecond)

// FromObservation puts what an event said into the terms of the rule. receivedAt is the event's own time of receipt; it is
// no version, but bounds one and closes windows that the provider's clock leaves open. A *provider.Dead is returned for a
// version too far ahead of it. An observation that concerns no object (Ignored) has no input and is an error.
func FromObservation(o provider.Observation, receivedAt time.Time) (Input, error) {
	received := receivedAt.UnixMicro()
	if o.Ignored != "" {
		return Input{}, errors.New("read version: the observation concerns no object")
	}
	if err := plausible(o, received); err != nil {
		return Input{}, err
	}
	if reason := partial(o); reason != "" {
		lo, hi := partialWindow(o, received)
		return Input{Version: NoVersion, State: NullState(false), Partial: reason, Lo: lo, Hi: hi, Own: o.Own, Received: received}, nil
	}
	state, before := hashStates(o)
	lo, hi := window(o, received)
	return Input{Version: version(o), State: state, Before: before, Own: o.Own, Lo: lo, Hi: hi, Received: received, Stamp: stamp(o)}, nil
}

// stamp is the end of the unit of time that the version names, 0 where it names none: an integer version, a simulated clock
// and a delete without a time.
func stamp(o provider.Observation) int64 {
	if o.AnyTime || !o.HasAt || !isTime(o.At) {
		return 0
	}
	return unitEnd(o)
}

// plausible refuses a version that no clock can have shown by the time of receipt.
func plausible(o provider.Observation, received int64) error {
	switch {
	case !o.HasAt:
		return nil
	case o.At == math.MinInt64:
		return &provider.Dead{Reason: "the version of the event is the smallest number there is, which stands for no version"}
	case o.AnyTime || o.At <= received+maxAhead:
		return nil
	}
	return &provider.Dead{Look: true, Reason: fmt.Sprintf("the version (%s) lies more than an hour after the receipt (%s) and would freeze the object; "+
		"a look at the provider is owed; usually this machine's clock is behind or the sender's is ahead",
		describeAt(o.At), describeAt(received))}
}

// partial says why an observation brings no whole state into the mirror, "" if it does.
func partial(o provider.Observation) string {
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

// version is where the observation lies. A final delete without a time is at 0: it outranks any time.
func version(o provider.Observation) Version {
	v := Version{Final: o.Final && o.Deleted, Rank: int16(min(max(o.Rank, 0), math.MaxInt16))}
	if o.HasAt {
		v.At = o.At
	}
	return v
}

// window is the provider time in which the state was so: the unit of the clock that At was read from, and up to the
// receipt, or to the event's own time if that is later, where the object may have changed without moving its version.
func window(o provider.Observation, received int64) (lo, hi int64) {
	if !o.HasAt {
		return 0, max(0, received)
	}
	hi = unitEnd(o)
	if o.Own && o.Still {
		hi = max(hi, received, o.Until)
	}
	return o.At, hi
}

// partialWindow is when what a partial event hints at happened: the unit of the event's clock, else the receipt. An
// object's own version is no clock that looks could be compared with.
func partialWindow(o provider.Observation, received int64) (lo, hi int64) {
	if !o.HasAt || o.Own {
		return received, received
	}
	return o.At, unitEnd(o)
}

// unitEnd is the last microsecond that a clock of the observation's unit shows as At.
func unitEnd(o provider.Observation) int64 {
	unit := max(o.Unit, 1)
	if o.At > math.MaxInt64-unit {
		return math.MaxInt64
	}
	return o.At + unit - 1
}

// hashStates makes the state and, where a change-set tells it, the hash of the state before.
func hashStates(o provider.Observation) (state State, before *Hash) {
	state, room := newState(o.State, o.Deleted, o.Volatile)
	if o.Before.Kind() != canonical.Missing {
		// Whatever a change made of the object, before it the object was there.
		compared := canonical.Options{DropNull: true, Without: o.Volatile}
		h := Hash(sha256.Sum256(canonical.AppendOverlay(append(room, present), o.State, o.Before, compared)))
		before = &h
	}
	return state, before
}

// NewState is a state from its value (nil and null are the same: nothing known of the object). volatile are dotted paths
// that are left out when states are compared.
func NewState(v *canonical.Value, deleted bool, volatile []string) State {
	s, _ := newState(v, deleted, volatile)
	return s
}

// newState is NewState and gives the memory of its texts to whoever has more to hash: a text is as long as the state and needed
// only until it is hashed.
func newState(v *canonical.Value, deleted bool, volatile []string) (s State, room []byte) {
	text := stateText(make([]byte, 0, len(v.Raw())+32), deleted, v, canonical.Options{})
	s = State{Exact: sha256.Sum256(text), Deleted: deleted}
	text = stateText(text[:0], deleted, v, canonical.Options{DropNull: true, Without: volatile})
	s.Hash = sha256.Sum256(text)
	if k := v.Kind(); k != canonical.Missing && k != canonical.Null {
		s.JSON, s.Repaired = v.Storable()
	}
	return s, text[:0]
}

// NullState is the state of an object that nothing is known of but whether it is deleted.
func NullState(deleted bool) State {
	return NewState(nil, deleted, nil)
}

// present is what the text of a state that is not deleted begins with.
const present = '+'

// stateText appends what a state's hash covers: one byte for deleted or not, then canonical JSON.
func stateText(dst []byte, deleted bool, v *canonical.Value, o canonical.Options) []byte {
	prefix := byte(present)
	if deleted {
		prefix = '-'
	}
	return v.AppendCanonical(append(dst, prefix), o)
}
