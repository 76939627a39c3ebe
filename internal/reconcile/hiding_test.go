package reconcile_test

import (
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/versioning"
)

// hiding is when the API ceased to find an object, and found it again, in turns.
type hiding struct {
	of    being
	turns []time.Time
}

// at says whether the object was hidden at a time, and until when that lasted; zero: it lasts.
func (h *hiding) at(t time.Time) (hidden bool, until time.Time) {
	n := 0
	for n < len(h.turns) && !h.turns[n].After(t) {
		n++
	}
	if n < len(h.turns) {
		until = h.turns[n]
	}
	return n%2 == 1, until
}

// owners are what other objects are listed below, so that these would be hidden with it. Of a repository nothing shows
// that it is missing.
var owners = []string{"order", "location", "repository"}

// hideOne has the API not find an object any more that is there. Where several are hidden it may find all of them again.
func (l *life) hideOne() {
	hidden := 0
	for _, h := range l.hidden {
		hidden += len(h.turns) % 2
	}
	if hidden > l.chance.IntN(3) {
		l.findAll()
		return
	}
	all := slices.DeleteFunc(l.beings(), func(b being) bool {
		return b.Body == nil || slices.Contains(owners, b.Type) || !l.found(l.key(b), l.Now())
	})
	if len(all) > 0 {
		l.turnUp(all[l.chance.IntN(len(all))])
	}
}

// turnUp hides an object, or has it found again.
func (l *life) turnUp(b being) {
	k := l.key(b)
	if l.hidden[k] == nil {
		l.hidden[k] = &hiding{of: b}
	}
	h := l.hidden[k]
	h.turns = append(h.turns, l.Now())
	l.hide(b, len(h.turns)%2 == 1)
	l.wished[b.read] = true // it is looked at more often
	l.counts["hidden"]++
}

// findAll has the API find all objects again.
func (l *life) findAll() {
	for _, h := range l.hidden {
		if len(h.turns)%2 == 1 {
			l.turnUp(h.of)
		}
	}
}

// found says whether the API has found an object all the time since one.
func (l *life) found(k versioning.Key, since time.Time) bool {
	h := l.hidden[k]
	if h == nil {
		return true
	}
	hidden, until := h.at(since)
	return !hidden && until.IsZero()
}

// unfound says whether the API did not find an object at some time from one on and before another.
func (l *life) unfound(k versioning.Key, from, until time.Time) bool {
	h := l.hidden[k]
	if h == nil {
		return false
	}
	hidden, next := h.at(from)
	return hidden || !next.IsZero() && next.Before(until)
}
