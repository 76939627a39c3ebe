package versioning

import (
	"errors"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// answerUnit is the resolution of an answer's Date header, in microseconds.
const answerUnit = int64(time.Second / time.Microsecond)

// FromLook puts what the provider's API answered into the terms of the rule; l tells when that was, and o is what the answer says. All that
// happened before the window is in the state. receivedAt bounds a version as in FromObservation, with the same errors.
//
// With a version of its own an object lies there, and closes that version where its unit of time was over when the look began. Without one it
// lies just before the first moment that it cannot know of, and was seen at that moment, so that it beats all that it must contain and ties with no event. A raised
// look lies there too. Rank 0 tells such a version from one of the object's own that lies as little before its look.
func FromLook(o provider.Observation, l *provider.Look, receivedAt time.Time) (Input, error) {
	if o.Ignored != "" {
		return Input{}, errors.New("read version: the look concerns no object")
	}
	if err := plausible(o, receivedAt.UnixMicro()); err != nil {
		return Input{}, err
	}
	unit := max(o.Unit, 1)
	lo := floorTo(l.Date.Add(-l.Elapsed-l.Lag).UnixMicro(), unit)
	in := Input{Look: true, Lo: lo, Hi: l.Date.UnixMicro() + answerUnit - 1, Received: receivedAt.UnixMicro()}
	if l.Settles != nil {
		in.Settles = min(l.Settles.Before.UnixMicro(), in.Received)
	}
	switch {
	case o.Partial != "" && o.Deleted && l.Settles != nil:
		return in.gone(), nil
	case o.Partial != "":
		in.Version, in.State, in.Partial = NoVersion, NullState(false), o.Partial
		return in, nil
	}
	in.State = NewState(o.State, o.Deleted, o.Volatile)
	in.Version = Version{Final: o.Final && o.Deleted, At: lo - unit, Seen: lo}
	if o.Own && o.HasAt && !l.Raised {
		in.Own, in.Version.At, in.Version.Rank = true, o.At, 1
		if lo <= unitEnd(o) {
			in.Version.Seen, in.Version.Rank = 0, version(o).Rank
		}
	}
	return in, nil
}

// gone is the tombstone of an object whose states only a number orders that grows with each change, by a person's word: it lies below all such numbers, so that whatever is received since the look
// began is news of the object.
func (in Input) gone() Input {
	in.State, in.Version, in.Own = NullState(true), Version{At: -1}, true
	return in
}

// Raises says whether a look at an object of this row must be raised: its own version is below that of the row, which is no own version but when somebody looked and,
// as a rule, found nothing. Ordered by its own version it would be stale for ever, though nothing newer has happened.
func (row *Row) Raises(in *Input) bool {
	return in.Look && in.Own && in.Settles == 0 && row.onlySeen() && in.Version.Compare(row.Version) < 0
}

// onlySeen says whether the row's version is when a look began, and no version of the object's own, against which an API that answers an older state than it says it can would be held.
func (row *Row) onlySeen() bool {
	v := row.Version
	return !v.Final && v.Seen > 0 && v.Rank == 0
}

// floorTo rounds down, also below 0.
func floorTo(t, unit int64) int64 {
	if r := t % unit; r < 0 {
		return t - r - unit
	}
	return t - t%unit
}
