package sim

import (
	"github.com/postern-gateway/postern/internal/versioning"
)

// Refetch is one read of an object from the API of the provider. Times are microseconds.
type Refetch struct {
	// Began is the true time at which the request was sent.
	Began int64
	// Elapsed is the time until the response.
	Elapsed int64
	// Lag is the largest known age of the state in a response.
	Lag int64
	// ReadOffset, from 0 to Lag + Elapsed, places the returned state at Began - Lag + ReadOffset.
	ReadOffset int64
	// Overwrites: an operator makes it win over all state that was received before it began.
	Overwrites bool
	// Reversioned: the start of the refetch is its version.
	Reversioned bool
}

// Refetch reads an object and converts the response to an input of the version rule. The Date of
// the response is in whole seconds.
func (h *History) Refetch(id string, l Refetch) versioning.Input {
	m, there := h.revisionAt(id, l.Began-l.Lag+l.ReadOffset)
	a := APIResponse{Date: floor(l.Began+l.Elapsed, second), Elapsed: l.Elapsed, Lag: l.Lag, Unit: h.Unit,
		State: versioning.NullState(true)}
	if there {
		a.State = h.stateOf(m)
		// the response for a permanently deleted object is a stub that says so
		a.Stub = a.State.Deleted && h.FinalDeletes && !m.hidden
	}
	if h.ObjectVersions && !a.State.Deleted && !l.Reversioned {
		a.HasVersion, a.Version, a.VersionUnit = true, m.version, h.Unit
	}
	if h.VersionIsCounter {
		a.VersionUnit = 1
	}
	in := a.Input()
	in.Received = l.Began + l.Elapsed
	if l.Overwrites {
		in.OverwriteAt = l.Began - l.Lag
	}
	switch {
	case h.VersionIsCounter && a.State.Deleted && l.Overwrites:
		in.Version, in.OwnVersion = versioning.Version{At: -1}, true // below all counter values
	case h.VersionIsCounter && a.State.Deleted:
		in.Partial = "not found, and a missing object has no counter value"
	}
	return in
}

const second = int64(1_000_000)

// APIResponse is a response of the provider's API about an object. Times are microseconds.
type APIResponse struct {
	// Date is the time in the response, in whole seconds. Elapsed is the time until the response.
	// Lag is the largest age of the state in it.
	Date, Elapsed, Lag int64
	// Unit is the resolution of the clock that stamps events.
	Unit int64
	// State is the object, or a deleted null for a 404.
	State versioning.State
	// Stub: the response says that the object is deleted, and ids of its type are never used again.
	Stub bool
	// HasVersion: the object carries Version, with the resolution VersionUnit.
	HasVersion           bool
	Version, VersionUnit int64
}

// Input converts the response to an input with its time range and version. The state contains all
// changes before the time range. Without a version in the object, its event time is just before the
// range and it was seen at the start of the range.
func (a APIResponse) Input() versioning.Input {
	lo := floor(a.Date-a.Elapsed-a.Lag, a.Unit)
	in := versioning.Input{IsRefetch: true, OwnVersion: a.HasVersion, State: a.State, TimeFrom: lo, TimeTo: a.Date +
		second - 1}
	in.Version = versioning.Version{Final: a.Stub, At: lo - a.Unit, Seen: lo}
	if a.HasVersion {
		in.Version.At, in.Version.Seen, in.Version.Rank = a.Version, 0, 1
		if lo >= a.Version+a.VersionUnit {
			in.Version.Seen = lo
		}
	}
	return in
}

// Exists reports whether an object existed at a true time.
func (h *History) Exists(id string, t int64) bool {
	m, there := h.revisionAt(id, t)
	return there && m.content != nil
}

// StateAt returns the state that a request at a true time would find.
func (h *History) StateAt(id string, t int64) versioning.State {
	m, _ := h.revisionAt(id, t)
	return h.stateOf(m)
}

// revisionAt returns the revision of an object at a true time. It returns false before the first
// change.
func (h *History) revisionAt(id string, t int64) (m revision, there bool) {
	for _, next := range h.revisions[id] {
		if next.from > t {
			break
		}
		m, there = next, true
	}
	return m, there
}
