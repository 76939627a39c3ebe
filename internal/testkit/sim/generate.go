package sim

import (
	"fmt"
	"maps"
	"reflect"
	"time"
)

// objectGenerator generates the history of one object.
type objectGenerator struct {
	history *History
	choose  Chooser
	id      string
	now     int64
	version int64
	step    int
	hits    int
	// content is the current content, or nil while the object does not exist.
	content map[string]any
	ended   bool // deleted permanently
}

func (l *objectGenerator) chance(percent int) bool { return l.choose.IntN(100) < percent }

// change moves the time forward and makes one change.
func (l *objectGenerator) change() {
	o := l.history.Options
	l.now += 1 + int64(l.choose.IntN(int(o.Gap)))
	l.advanceVersion()
	old, opening := l.content, l.content == nil
	if !opening && l.chance(o.Deletes) {
		l.content = nil
		l.ended = o.FinalDeletes
	} else {
		l.content = l.nextContent()
	}
	l.history.revisions[l.id] = append(l.history.revisions[l.id], revision{from: l.now, version: l.version,
		content: l.content})
	l.addEvents(old, opening)
}

// hideForAWhile sometimes makes the API not find the object, for a while or forever.
func (l *objectGenerator) hideForAWhile() {
	o := l.history.Options
	if o.TemporarilyMissing == 0 || l.content == nil || !l.chance(o.TemporarilyMissing) {
		return
	}
	from := l.now + 1 + int64(l.choose.IntN(int(o.Gap)))
	if l.now = from + 1 + int64(l.choose.IntN(int(o.Gap))); l.choose.IntN(4) == 0 {
		l.now, l.ended = 0, true
	}
	l.history.Hide(l.id, from, l.now)
}

// advanceVersion moves the version of the object. With VersionMayNotAdvance it may stay, except at
// the creation.
func (l *objectGenerator) advanceVersion() {
	switch o := l.history.Options; {
	case o.VersionIsCounter:
		l.version++
	case !o.VersionMayNotAdvance || l.content == nil || !l.chance(30):
		l.version = floor(l.now, o.Unit)
	}
}

// nextContent chooses the next content of the object.
func (l *objectGenerator) nextContent() map[string]any {
	o := l.history.Options
	n := l.choose.IntN(o.Contents)
	content := map[string]any{"id": l.id, "name": fmt.Sprintf("content %d", n),
		"deep": map[string]any{"half": n / 2, "odd": n % 2}}
	if n%2 == 0 {
		content["even"] = true
	}
	if o.ObjectVersions {
		content["version"] = l.version
	}
	if o.StatusSteps {
		l.step = min(l.step+l.choose.IntN(2), 2)
		content["step"] = l.step
	}
	if o.Noise {
		l.hits++
		content["hits"] = l.hits
		if l.chance(50) {
			content["note"] = nil
		}
	}
	return content
}

// addEvents adds the event of a change, and perhaps a duplicate of it.
func (l *objectGenerator) addEvents(old map[string]any, opening bool) {
	o := l.history.Options
	body := map[string]any{"object_id": l.id, "type": "thing.updated", "unit": o.Unit, "rank": l.rank(opening),
		"volatile": ignoredPaths, "own": o.ObjectVersions, "still": o.ObjectVersions && o.VersionMayNotAdvance}
	if o.VersionIsCounter {
		body["unit"] = 1
	}
	partial := l.chance(o.Partial)
	switch {
	case partial && !l.ended:
		body["type"], body["partial"] = "thing.hinted", "the event names the object only"
	case l.content == nil:
		body["type"], body["deleted"], body["final"] = "thing.deleted", true, o.FinalDeletes
	default:
		body["object"] = l.content
		if !opening && l.chance(o.ChangeSets) {
			body["previous"] = previous(old, l.content)
		}
	}
	l.setTime(body)
	l.addEvent(body)
	if l.chance(o.DuplicateEvents) {
		l.addEvent(body)
	}
}

// rank is 0 for the event that creates an object whose id is never used again.
func (l *objectGenerator) rank(opening bool) int {
	switch o := l.history.Options; {
	case !o.EventsHoldOwnState || o.Deletes > 0 && !o.FinalDeletes:
		return 1
	case opening:
		return 0
	default:
		return 1 + l.step
	}
}

// setTime sets the version of the event body.
func (l *objectGenerator) setTime(body map[string]any) {
	o := l.history.Options
	switch {
	case l.ended && o.DeletesWithoutTime:
	case o.ObjectVersions:
		body["time"] = l.version
	default:
		skew := int64(0)
		if o.Skew > 0 {
			skew = int64(l.choose.IntN(int(2*o.Skew+1))) - o.Skew
		}
		body["time"] = floor(l.now+skew, o.Unit)
	}
}

// addEvent adds the body to the history under a new key.
func (l *objectGenerator) addEvent(body map[string]any) {
	body = maps.Clone(body)
	key := fmt.Sprintf("evt_%d", len(l.history.Events)+1)
	body["id"] = key
	received := l.now + int64(l.choose.IntN(int(l.history.MaxDelay+1)))
	_, partial := body["partial"]
	l.history.Events = append(l.history.Events, Event{
		Key: key, Object: l.id, OccurredAt: l.now, ReceivedAt: time.UnixMicro(received).UTC(), Body: text(body),
		Partial: partial,
		State:   l.history.stateOf(revision{content: l.content}),
	})
}

// previous returns the change-set from old to new: the old values of changed fields, null for
// fields that did not exist.
func previous(old, new map[string]any) map[string]any {
	set := map[string]any{}
	for key, was := range old {
		is := new[key]
		wasTree, deep := was.(map[string]any)
		isTree, both := is.(map[string]any)
		switch {
		case reflect.DeepEqual(was, is):
		case deep && both:
			set[key] = previous(wasTree, isTree)
		default:
			set[key] = was
		}
	}
	for key := range new {
		if _, there := old[key]; !there {
			set[key] = nil
		}
	}
	return set
}
