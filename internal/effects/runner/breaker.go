package runner

import (
	"sync"
	"time"
)

const (
	// tripsAfter is after how many calls in a row that came to nothing a destination is left alone.
	tripsAfter = 5
	// firstBreak is for how long, and longestBreak the most, since each further one doubles it.
	firstBreak, longestBreak = time.Second, time.Minute
	// longestRest bounds for how long a destination can have all of its effects wait.
	longestRest = 10 * time.Minute
)

// breaker leaves a destination alone that answers nothing or 5xx, so that effects do not spend their attempts on it.
type breaker struct {
	mu       sync.Mutex
	troubles int
	until    time.Time
	next     time.Duration
	// asked is until when the destination has asked to be left alone.
	asked time.Time
}

// tell notes how a call went.
func (b *breaker) tell(well bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if well {
		b.troubles, b.next, b.until = 0, 0, time.Time{}
		return
	}
	if b.troubles++; b.troubles < tripsAfter || time.Now().Before(b.until) {
		return
	}
	b.next = min(max(firstBreak, 2*b.next), longestBreak)
	b.until = time.Now().Add(b.next)
}

// rest leaves the destination alone for as long as it asks for.
func (b *breaker) rest(wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until := time.Now().Add(min(wait, longestRest)); until.After(b.asked) {
		b.asked = until
	}
}

// room is how many of so many calls may be made now, and how long to wait where none may: after a break it is one, until it went well.
func (b *breaker) room(free, underWay int) (int, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := time.Until(b.asked); wait > 0 {
		return 0, wait
	}
	switch wait := time.Until(b.until); {
	case b.troubles < tripsAfter:
		return free, 0
	case wait > 0:
		return 0, wait
	case underWay > 0:
		return 0, firstBreak
	}
	return min(free, 1), 0
}
