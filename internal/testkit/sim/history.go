// Package sim is a simulated provider: it makes histories of objects that change several times within the resolution of
// the provider's clock, knows what became of each object in truth, and reads its own events as a provider does. Tests put
// a history through the version rule, or through everything, in any order and compare the end with the truth.
package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Chooser makes every choice of a history: a seeded *rand.Rand, or a property test's generator, which can then shrink it.
type Chooser interface {
	// IntN is a number from 0 to n-1.
	IntN(n int) int
}

// Options say what a provider is like. Percentages are from 0 to 100, times are microseconds.
type Options struct {
	// Objects is how many objects there are, at least 1.
	Objects int
	// Changes is how many changes an object has at most.
	Changes int
	// Contents is how many contents an object alternates between; few of them make it return to old states.
	Contents int
	// Unit is the resolution of the provider's clock, at least 1.
	Unit int64
	// Gap is the longest time between two changes, at least 1.
	Gap int64
	// Own: objects carry their own version, a time; Still: it does not move with every change; Integer: it is a counter.
	Own, Still, Integer bool
	// Frozen: an event's state is that of its own moment, so opening events and steps may have ranks.
	Frozen bool
	// Steps: objects have a status that never goes back, and events a rank by it; needs Frozen.
	Steps bool
	// ChangeSets is the percentage of changes that say what was before.
	ChangeSets int
	// Partial is the percentage of changes that are told without a state.
	Partial int
	// Deletes is the percentage of changes that delete the object.
	Deletes int
	// Hides is the percentage of changes after which the object cannot be found for a while, or for ever, and then is there again as it was; nobody tells it.
	Hides int
	// Final: deletes are for good; otherwise the id comes back with the next change. Timeless: they carry no time.
	Final, Timeless bool
	// Twins is the percentage of events that are told a second time under another key.
	Twins int
	// Late is how long after the change an event may be received.
	Late int64
	// Skew is how far the clocks that stamp events may be off, either way.
	Skew int64
	// Noise: states differ in ways that do not count (a volatile field, null or absent).
	Noise bool
}

// Start is when histories begin, in microseconds.
const Start = int64(1_700_000_000_000_000)

// Event is something the provider sends.
type Event struct {
	Key    string
	Object string
	// Happened is the true time of the change, whatever the body's clock says.
	Happened   int64
	ReceivedAt time.Time
	Body       []byte
	// State is what the object became; Partial: the event does not say.
	State   versioning.State
	Partial bool
}

// History is what happened to some objects, in the order of time for each object.
type History struct {
	Options
	Events []Event
	lives  map[string][]moment
}

// moment is an object from one change to the next.
type moment struct {
	from    int64
	own     int64
	content map[string]any // nil: not there
	hidden  bool           // there, and not to be found
}

// Generate makes a history.
func Generate(c Chooser, o Options) *History {
	h := &History{Options: o, lives: map[string][]moment{}}
	for i := range o.Objects {
		l := life{h: h, choose: c, id: fmt.Sprintf("obj_%d", i+1), now: Start}
		for range 1 + c.IntN(o.Changes) {
			if l.ended {
				break
			}
			l.change()
			l.hide()
		}
	}
	return h
}

// ObjectIDs are the ids of the objects of a history, in the order they came to be.
func (h *History) ObjectIDs() []string {
	ids := make([]string, len(h.lives))
	for i := range ids {
		ids[i] = fmt.Sprintf("obj_%d", i+1)
	}
	return ids
}

// Of are the events of one object in the order of the changes.
func (h *History) Of(id string) []Event {
	var events []Event
	for _, e := range h.Events {
		if e.Object == id {
			events = append(events, e)
		}
	}
	return events
}

// Truth is what an object is in the end.
func (h *History) Truth(id string) versioning.State {
	life := h.lives[id]
	return h.state(life[len(life)-1])
}

// End is the true time of an object's last change.
func (h *History) End(id string) int64 {
	life := h.lives[id]
	return life[len(life)-1].from
}

// Hide has an object not be found from one true time, behind its last change, to another; 0: for ever. It is there as it was all the while, and nobody tells of it.
func (h *History) Hide(id string, from, to int64) {
	life := h.lives[id]
	there := life[len(life)-1]
	life = append(life, moment{from: from, own: there.own, hidden: true})
	if to > 0 {
		there.from = to
		life = append(life, there)
	}
	h.lives[id] = life
}

// Edit changes an object at a true time behind its last change, and nobody tells of it. Moved: so does its own version.
func (h *History) Edit(id string, at int64, moved bool) {
	m := h.lives[id][len(h.lives[id])-1]
	if m.from = at; moved {
		m.own = floor(at, h.Unit)
	}
	m.content = maps.Clone(m.content)
	m.content["name"] = fmt.Sprintf("edited at %d", at)
	if h.Own {
		m.content["version"] = m.own
	}
	h.lives[id] = append(h.lives[id], m)
}

// Restore makes an object what it was at one of its earlier moments, at a true time behind its last change, as a provider does
// that is restored from a backup. No event tells of it.
func (h *History) Restore(id string, at int64, moment int) {
	m := h.lives[id][moment]
	m.from = at
	h.lives[id] = append(h.lives[id], m)
}

// Times are the true times at which an object became another, or was hidden or found again.
func (h *History) Times(id string) (times []int64) {
	for _, m := range h.lives[id] {
		times = append(times, m.from)
	}
	return times
}

// state is a moment in the terms of the rule.
func (h *History) state(m moment) versioning.State {
	if m.content == nil {
		return versioning.NullState(true)
	}
	return versioning.NewState(value(m.content), false, volatile)
}

// volatile are the fields that change without counting.
var volatile = []string{"hits"}

// value is a tree of encoding/json as a canonical value.
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
		panic(err) // the trees are made of strings, numbers and maps only
	}
	return b
}

func floor(t, unit int64) int64 { return t - t%unit }
