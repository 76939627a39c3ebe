package sim

import (
	"github.com/postern-gateway/postern/internal/versioning"
)

// Look is one question to the provider's API. Times are microseconds.
type Look struct {
	// Began is the true time at which the question was sent.
	Began int64
	// Elapsed is how long the answer took.
	Elapsed int64
	// Lag is how old a state the API may answer with, as is known of it.
	Lag int64
	// Answered chooses, from 0 to Lag + Elapsed, how long after Began - Lag the state was so.
	Answered int64
	// Settles: a person has it win over all that was received before it began.
	Settles bool
	// Raised: it is ordered by when it began alone.
	Raised bool
}

// Look asks for an object and puts the answer into the terms of the rule. The answer's Date is in whole seconds.
func (h *History) Look(id string, l Look) versioning.Input {
	m, there := h.at(id, l.Began-l.Lag+l.Answered)
	a := Answer{Date: floor(l.Began+l.Elapsed, second), Elapsed: l.Elapsed, Lag: l.Lag, Unit: h.Unit, State: versioning.NullState(true)}
	if there {
		a.State = h.state(m)
		a.Stub = a.State.Deleted && h.Final && !m.hidden // what was deleted for good is answered with a stub that says so
	}
	if h.Own && !a.State.Deleted && !l.Raised {
		a.Own, a.Version, a.VersionUnit = true, m.own, h.Unit
	}
	if h.Integer {
		a.VersionUnit = 1
	}
	in := a.Input()
	in.Received = l.Began + l.Elapsed
	if l.Settles {
		in.Settles = l.Began - l.Lag
	}
	switch {
	case h.Integer && a.State.Deleted && l.Settles:
		in.Version, in.Own = versioning.Version{At: -1}, true // below all numbers
	case h.Integer && a.State.Deleted:
		in.Partial = "not found, and a counter has no place for that"
	}
	return in
}

const second = int64(1_000_000)

// Answer is what the provider's API said of an object. Times are microseconds.
type Answer struct {
	// Date is the answer's own time, in whole seconds; Elapsed how long it took; Lag how old a state the API may answer with.
	Date, Elapsed, Lag int64
	// Unit is the resolution of the clock that events are stamped with.
	Unit int64
	// State is the object, or a deleted null for a 404.
	State versioning.State
	// Stub: the answer itself says that the object is deleted, and ids of its type are never given again.
	Stub bool
	// Own: the object carries its own Version, of resolution VersionUnit.
	Own                  bool
	Version, VersionUnit int64
}

// Input is the answer's window and version. All that happened before the window is in the state, so without a version of
// its own the state lies before the first moment it cannot know of, and was seen at that moment.
func (a Answer) Input() versioning.Input {
	lo := floor(a.Date-a.Elapsed-a.Lag, a.Unit)
	in := versioning.Input{Look: true, Own: a.Own, State: a.State, Lo: lo, Hi: a.Date + second - 1}
	in.Version = versioning.Version{Final: a.Stub, At: lo - a.Unit, Seen: lo}
	if a.Own {
		in.Version.At, in.Version.Seen, in.Version.Rank = a.Version, 0, 1
		if lo >= a.Version+a.VersionUnit {
			in.Version.Seen = lo
		}
	}
	return in
}

// There tells whether an object was there at a true time.
func (h *History) There(id string, t int64) bool {
	m, there := h.at(id, t)
	return there && m.content != nil
}

// State is what an object was at a true time, as whoever asks for it finds it.
func (h *History) State(id string, t int64) versioning.State {
	m, _ := h.at(id, t)
	return h.state(m)
}

// at is what an object was at a true time; not there: before its first change.
func (h *History) at(id string, t int64) (m moment, there bool) {
	for _, next := range h.lives[id] {
		if next.from > t {
			break
		}
		m, there = next, true
	}
	return m, there
}
