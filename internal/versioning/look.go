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
// lies just before the first moment that it cannot know of, and was seen at that moment, so that it beats all that it must contain and ties with no event.
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
	if o.Partial != "" {
		in.Version, in.State, in.Partial = NoVersion, NullState(false), o.Partial
		return in, nil
	}
	in.State = NewState(o.State, o.Deleted, o.Volatile)
	in.Version = Version{Final: o.Final && o.Deleted, At: lo - unit, Seen: lo, Rank: 1}
	if o.Own && o.HasAt {
		in.Own, in.Version.At = true, o.At
		if lo <= unitEnd(o) {
			in.Version.Seen, in.Version.Rank = 0, version(o).Rank
		}
	}
	return in, nil
}

// floorTo rounds down, also below 0.
func floorTo(t, unit int64) int64 {
	if r := t % unit; r < 0 {
		return t - r - unit
	}
	return t - t%unit
}
