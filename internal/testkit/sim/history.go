// Package sim is a simulated provider. It generates histories of objects that change several times
// within the resolution of the provider's clock, keeps the true state of each object, and reads its
// own events as a provider does. Tests apply a history in any order and compare the result with the
// true states.
package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Chooser makes every choice of a history. It is a seeded *rand.Rand, or the generator of a
// property test, which can shrink the history.
type Chooser interface {
	// IntN returns a number from 0 to n-1.
	IntN(n int) int
}

// Options describe a provider. Percentages are from 0 to 100, times are microseconds.
type Options struct {
	// Objects is the number of objects, at least 1.
	Objects int
	// Changes is the maximum number of changes of an object.
	Changes int
	// Contents is the number of different contents of an object. With few contents an object
	// returns to old states.
	Contents int
	// Unit is the resolution of the provider's clock, at least 1.
	Unit int64
	// Gap is the longest time between two changes, at least 1.
	Gap int64
	// ObjectVersions: objects carry a version, which is a time. VersionMayNotAdvance: some changes
	// do not move it. VersionIsCounter: it is a counter.
	ObjectVersions, VersionMayNotAdvance, VersionIsCounter bool
	// EventsHoldOwnState: an event holds the state at its own time, so that events which create an
	// object and status steps can have ranks.
	EventsHoldOwnState bool
	// StatusSteps: objects have a status that never goes back, and the rank of an event depends on
	// it. It requires EventsHoldOwnState.
	StatusSteps bool
	// ChangeSets is the percentage of changes whose event has the previous values.
	ChangeSets int
	// Partial is the percentage of changes whose event has no state.
	Partial int
	// Deletes is the percentage of changes that delete the object.
	Deletes int
	// TemporarilyMissing is the percentage of changes after which the API does not find the object,
	// for a while or forever. Afterwards the object is as before. No event reports this.
	TemporarilyMissing int
	// FinalDeletes: deletes are permanent; otherwise the next change uses the id again.
	// DeletesWithoutTime: delete events carry no time.
	FinalDeletes, DeletesWithoutTime bool
	// DuplicateEvents is the percentage of events that are sent a second time under another key.
	DuplicateEvents int
	// MaxDelay is the longest time between a change and the receipt of its event.
	MaxDelay int64
	// Skew is the largest error of the clocks that stamp events, in either direction.
	Skew int64
	// Noise: states differ in ways that do not count (an ignored field, null or absent).
	Noise bool
}

// Start is the time at which histories begin, in microseconds.
const Start = int64(1_700_000_000_000_000)

// Event is an event that the provider sends.
type Event struct {
	Key    string
	Object string
	// OccurredAt is the true time of the change, independent of the clock in the body.
	OccurredAt int64
	ReceivedAt time.Time
	Body       []byte
	// State is the state of the object after the change. Partial: the event does not contain it.
	State   versioning.State
	Partial bool
}

// History is the history of some objects. The events of each object are in the order of time.
type History struct {
	Options
	Events    []Event
	revisions map[string][]revision
}

// revision is the state of an object from one change to the next.
type revision struct {
	from    int64
	version int64
	content map[string]any // nil: the object does not exist
	hidden  bool           // the object exists, but the API does not find it
}

// Generate makes a history.
func Generate(c Chooser, o Options) *History {
	h := &History{Options: o, revisions: map[string][]revision{}}
	for i := range o.Objects {
		l := objectGenerator{history: h, choose: c, id: fmt.Sprintf("obj_%d", i+1), now: Start}
		for range 1 + c.IntN(o.Changes) {
			if l.ended {
				break
			}
			l.change()
			l.hideForAWhile()
		}
	}
	return h
}

// ObjectIDs returns the ids of the objects in the order of their creation.
func (h *History) ObjectIDs() []string {
	ids := make([]string, len(h.revisions))
	for i := range ids {
		ids[i] = fmt.Sprintf("obj_%d", i+1)
	}
	return ids
}

// EventsOf returns the events of one object in the order of the changes.
func (h *History) EventsOf(id string) []Event {
	var events []Event
	for _, e := range h.Events {
		if e.Object == id {
			events = append(events, e)
		}
	}
	return events
}

// FinalState returns the state of an object at the end of the history.
func (h *History) FinalState(id string) versioning.State {
	revisions := h.revisions[id]
	return h.stateOf(revisions[len(revisions)-1])
}

// LastChangeAt returns the true time of the last change of an object.
func (h *History) LastChangeAt(id string) int64 {
	revisions := h.revisions[id]
	return revisions[len(revisions)-1].from
}

// Hide makes the API not find an object between two true times after its last change. With to = 0
// it lasts forever. The object stays as it is, and no event reports this.
func (h *History) Hide(id string, from, to int64) {
	revisions := h.revisions[id]
	there := revisions[len(revisions)-1]
	revisions = append(revisions, revision{from: from, version: there.version, hidden: true})
	if to > 0 {
		there.from = to
		revisions = append(revisions, there)
	}
	h.revisions[id] = revisions
}

// EditSilently changes an object at a true time after its last change, without an event. If moved
// is set, its version changes too.
func (h *History) EditSilently(id string, at int64, moved bool) {
	m := h.revisions[id][len(h.revisions[id])-1]
	if m.from = at; moved {
		m.version = floor(at, h.Unit)
	}
	m.content = maps.Clone(m.content)
	m.content["name"] = fmt.Sprintf("edited at %d", at)
	if h.ObjectVersions {
		m.content["version"] = m.version
	}
	h.revisions[id] = append(h.revisions[id], m)
}

// Restore returns an object to an earlier revision at a true time after its last change, as a
// provider does that is restored from a backup. No event reports it.
func (h *History) Restore(id string, at int64, index int) {
	m := h.revisions[id][index]
	m.from = at
	h.revisions[id] = append(h.revisions[id], m)
}

// ChangeTimes returns the true times at which an object changed, was hidden or was found again.
func (h *History) ChangeTimes(id string) (times []int64) {
	for _, m := range h.revisions[id] {
		times = append(times, m.from)
	}
	return times
}

// stateOf converts a revision to a state of the version rule.
func (h *History) stateOf(m revision) versioning.State {
	if m.content == nil {
		return versioning.NullState(true)
	}
	return versioning.NewState(value(m.content), false, ignoredPaths)
}

// ignoredPaths are the fields whose changes do not count.
var ignoredPaths = []string{"hits"}

// value converts a tree of encoding/json to a canonical value.
func value(tree any) *canonical.Value {
	v, err := canonical.Parse(text(tree))
	if err != nil {
		panic(err) // text wrote it
	}
	return v
}

func text(tree any) []byte {
	b, err := json.Marshal(tree)
	if err != nil {
		panic(err) // the trees consist of strings, numbers and maps only
	}
	return b
}

func floor(t, unit int64) int64 { return t - t%unit }
