package versioning

import (
	"errors"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// dateUnit is the resolution of the Date header of a response, in microseconds.
const dateUnit = int64(time.Second / time.Microsecond)

// InputFromRefetch converts a refetch into an input of the version rule. r says when the refetch
// ran, and o is the observation of its response. The state contains every change from before the
// input's time range. receivedAt limits the version as in InputFromObservation, and the errors are
// the same.
//
// An object with a version of its own has that version. If the version's unit of time was over when
// the refetch began, Seen is the start of the refetch. An object without its own version gets At
// just before the start of the refetch, and Seen at the start. It therefore beats every event that
// it must contain, and ties with none. A re-versioned refetch gets such a version too. Rank 0
// distinguishes this version from an own version with the same At and Seen, which has rank 1.
func InputFromRefetch(o provider.Observation, r *provider.Refetch, receivedAt time.Time) (Input, error) {
	if o.Ignored != "" {
		return Input{}, errors.New("read version: the refetch is about no object")
	}
	if err := checkPlausible(o, receivedAt.UnixMicro()); err != nil {
		return Input{}, err
	}
	unit := max(o.Unit, 1)
	lo := floorTo(r.Date.Add(-r.Elapsed-r.Lag).UnixMicro(), unit)
	in := Input{IsRefetch: true, TimeFrom: lo, TimeTo: r.Date.UnixMicro() + dateUnit - 1,
		Received: receivedAt.UnixMicro()}
	if r.Overwrite != nil {
		in.OverwriteAt = min(r.Overwrite.Before.UnixMicro(), in.Received)
	}
	switch {
	case o.Partial != "" && o.Deleted && r.Overwrite != nil:
		return in.asTombstone(), nil
	case o.Partial != "":
		in.Version, in.State, in.Partial = NoVersion, NullState(false), o.Partial
		return in, nil
	}
	in.State = NewState(o.State, o.Deleted, o.IgnoredPaths)
	in.Version = Version{Final: o.Final && o.Deleted, At: lo - unit, Seen: lo}
	if o.OwnVersion && o.HasAt && !r.Reversioned {
		in.OwnVersion, in.Version.At, in.Version.Rank = true, o.At, 1
		if lo <= unitEnd(o) {
			in.Version.Seen, in.Version.Rank = 0, observedVersion(o).Rank
		}
	}
	return in, nil
}

// asTombstone returns the tombstone that an operator's overwrite writes for an object whose
// versions are integers. Its version is below all integer versions, so any input received after the
// refetch began replaces it.
func (in Input) asTombstone() Input {
	in.State, in.Version, in.OwnVersion = NullState(true), Version{At: -1}, true
	return in
}

// NeedsReversion reports whether a refetch must be re-versioned. This is true when its own version
// is below the row's version, and the row's version is only the start of an earlier refetch, which
// usually found no object. With its own version the refetch would be stale, although it is newer.
func (row *Row) NeedsReversion(in *Input) bool {
	return in.IsRefetch && in.OwnVersion && in.OverwriteAt == 0 && row.hasRefetchVersion() &&
		in.Version.Compare(row.Version) < 0
}

// hasRefetchVersion reports whether the row's version is the start of a refetch. A refetch with the
// object's own version has rank 1 if Seen is set.
func (row *Row) hasRefetchVersion() bool {
	v := row.Version
	return !v.Final && v.Seen > 0 && v.Rank == 0
}

// floorTo rounds down, also for negative times.
func floorTo(t, unit int64) int64 {
	if r := t % unit; r < 0 {
		return t - r - unit
	}
	return t - t%unit
}
