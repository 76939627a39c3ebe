package sim

import (
	"fmt"
	"maps"
	"reflect"
	"time"
)

// life is one object while its history is made.
type life struct {
	h      *History
	choose Chooser
	id     string
	now    int64
	own    int64
	step   int
	hits   int
	// content is what the object is, nil while it is not there.
	content map[string]any
	ended   bool // deleted for good
}

func (l *life) chance(percent int) bool { return l.choose.IntN(100) < percent }

// change lets some time pass and one thing happen.
func (l *life) change() {
	o := l.h.Options
	l.now += 1 + int64(l.choose.IntN(int(o.Gap)))
	l.tick()
	old, opening := l.content, l.content == nil
	if !opening && l.chance(o.Deletes) {
		l.content = nil
		l.ended = o.Final
	} else {
		l.content = l.next()
	}
	l.h.lives[l.id] = append(l.h.lives[l.id], moment{from: l.now, own: l.own, content: l.content})
	l.tell(old, opening)
}

// hide lets the object not be found for a while, or for ever.
func (l *life) hide() {
	o := l.h.Options
	if o.Hides == 0 || l.content == nil || !l.chance(o.Hides) {
		return
	}
	from := l.now + 1 + int64(l.choose.IntN(int(o.Gap)))
	if l.now = from + 1 + int64(l.choose.IntN(int(o.Gap))); l.choose.IntN(4) == 0 {
		l.now, l.ended = 0, true
	}
	l.h.Hide(l.id, from, l.now)
}

// tick moves the object's own version; a Still one may stay, but a new object has the time of its birth.
func (l *life) tick() {
	switch o := l.h.Options; {
	case o.Integer:
		l.own++
	case !o.Still || l.content == nil || !l.chance(30):
		l.own = floor(l.now, o.Unit)
	}
}

// next is what the object becomes.
func (l *life) next() map[string]any {
	o := l.h.Options
	n := l.choose.IntN(o.Contents)
	content := map[string]any{"id": l.id, "name": fmt.Sprintf("content %d", n), "deep": map[string]any{"half": n / 2, "odd": n % 2}}
	if n%2 == 0 {
		content["even"] = true
	}
	if o.Own {
		content["version"] = l.own
	}
	if o.Steps {
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

// tell makes the event of a change, and perhaps its twin.
func (l *life) tell(old map[string]any, opening bool) {
	o := l.h.Options
	body := map[string]any{"object_id": l.id, "type": "thing.updated", "unit": o.Unit, "rank": l.rank(opening), "volatile": volatile, "own": o.Own, "still": o.Own && o.Still}
	if o.Integer {
		body["unit"] = 1
	}
	partial := l.chance(o.Partial)
	switch {
	case partial && !l.ended:
		body["type"], body["partial"] = "thing.hinted", "the event names the object only"
	case l.content == nil:
		body["type"], body["deleted"], body["final"] = "thing.deleted", true, o.Final
	default:
		body["object"] = l.content
		if !opening && l.chance(o.ChangeSets) {
			body["previous"] = previous(old, l.content)
		}
	}
	l.stamp(body)
	l.send(body)
	if l.chance(o.Twins) {
		l.send(body)
	}
}

// rank is 0 for the event that opens an object whose id never comes back.
func (l *life) rank(opening bool) int {
	switch o := l.h.Options; {
	case !o.Frozen || o.Deletes > 0 && !o.Final:
		return 1
	case opening:
		return 0
	default:
		return 1 + l.step
	}
}

// stamp gives the body its version.
func (l *life) stamp(body map[string]any) {
	o := l.h.Options
	switch {
	case l.ended && o.Timeless:
	case o.Own:
		body["time"] = l.own
	default:
		skew := int64(0)
		if o.Skew > 0 {
			skew = int64(l.choose.IntN(int(2*o.Skew+1))) - o.Skew
		}
		body["time"] = floor(l.now+skew, o.Unit)
	}
}

// send puts the body into the history under a key of its own.
func (l *life) send(body map[string]any) {
	body = maps.Clone(body)
	key := fmt.Sprintf("evt_%d", len(l.h.Events)+1)
	body["id"] = key
	received := l.now + int64(l.choose.IntN(int(l.h.Late+1)))
	_, partial := body["partial"]
	l.h.Events = append(l.h.Events, Event{
		Key: key, Object: l.id, Happened: l.now, ReceivedAt: time.UnixMicro(received).UTC(), Body: text(body), Partial: partial,
		State: l.h.state(moment{content: l.content}),
	})
}

// previous is the change-set from old to new: what changed fields were, null where they were not there.
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
