package reconcile_test

import (
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// hiding is when the API ceased to find an object, and found it again, in turns.
type hiding struct {
	of    stripefake.Object
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

// hideOne has the API not find an object any more that is there, or find one again.
func (l *life) hideOne() {
	all := slices.DeleteFunc(l.fake.Truth(), stripefake.Object.Deleted)
	if l.hides && len(all) > 0 {
		l.turnUp(all[l.chance.IntN(len(all))])
	}
}

// turnUp hides an object, or has it found again.
func (l *life) turnUp(o stripefake.Object) {
	k := l.key(o)
	if l.hidden[k] == nil {
		l.hidden[k] = &hiding{of: o}
	}
	h := l.hidden[k]
	h.turns = append(h.turns, l.fake.Now())
	l.fake.Hide(o.Account, o.ID, len(h.turns)%2 == 1)
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
