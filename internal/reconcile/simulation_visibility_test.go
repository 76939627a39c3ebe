package reconcile_test

import (
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/versioning"
)

// visibility records when the API ceased to find an object and found it again, alternately.
type visibility struct {
	object  liveObject
	changes []time.Time
}

// hiddenAt reports whether the object was hidden at a time and until when. Zero means that it still
// is.
func (h *visibility) hiddenAt(t time.Time) (hidden bool, until time.Time) {
	n := 0
	for n < len(h.changes) && !h.changes[n].After(t) {
		n++
	}
	if n < len(h.changes) {
		until = h.changes[n]
	}
	return n%2 == 1, until
}

// parentTypes have child objects, which would be hidden with them. A missing repository cannot be
// verified.
var parentTypes = []string{"order", "location", "repository"}

// hideRandom makes the API not find an existing object. If several are hidden, it may show all of
// them again.
func (l *simulation) hideRandom() {
	hidden := 0
	for _, h := range l.visibilities {
		hidden += len(h.changes) % 2
	}
	if hidden > l.chance.IntN(3) {
		l.showAll()
		return
	}
	all := slices.DeleteFunc(l.objects(), func(b liveObject) bool {
		return b.Body == nil || slices.Contains(parentTypes, b.Type) || !l.visibleSince(l.keyOf(b), l.Now())
	})
	if len(all) > 0 {
		l.toggleHidden(all[l.chance.IntN(len(all))])
	}
}

// toggleHidden hides an object or shows it again.
func (l *simulation) toggleHidden(b liveObject) {
	k := l.keyOf(b)
	if l.visibilities[k] == nil {
		l.visibilities[k] = &visibility{object: b}
	}
	h := l.visibilities[k]
	h.changes = append(h.changes, l.Now())
	l.hide(b, len(h.changes)%2 == 1)
	l.extraReads[b.readKey] = true // it needs more refetches
	l.counts["not_listed"]++
}

// showAll shows all hidden objects again.
func (l *simulation) showAll() {
	for _, h := range l.visibilities {
		if len(h.changes)%2 == 1 {
			l.toggleHidden(h.object)
		}
	}
}

// visibleSince reports whether the API has found an object continuously since a time.
func (l *simulation) visibleSince(k versioning.Key, since time.Time) bool {
	h := l.visibilities[k]
	if h == nil {
		return true
	}
	hidden, until := h.hiddenAt(since)
	return !hidden && until.IsZero()
}

// hiddenWithin reports whether the API did not find an object at some time from one time to
// another.
func (l *simulation) hiddenWithin(k versioning.Key, from, until time.Time) bool {
	h := l.visibilities[k]
	if h == nil {
		return false
	}
	hidden, next := h.hiddenAt(from)
	return hidden || !next.IsZero() && next.Before(until)
}
