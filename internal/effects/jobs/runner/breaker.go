package runner

import (
	"sync"
	"time"
)

const (
	// tripAfter is the number of consecutive failed calls after which a destination is paused.
	tripAfter = 5
	// minPause is the first pause and maxPause the longest. Each further pause is twice as long.
	minPause, maxPause = time.Second, time.Minute
	// maxRequestedPause bounds the pause that a destination can request for all of its effects.
	maxRequestedPause = 10 * time.Minute
)

// breaker pauses a destination that does not respond, or responds with 5xx, so that effects do not
// spend their attempts on it.
type breaker struct {
	mu        sync.Mutex
	failures  int
	until     time.Time
	nextPause time.Duration
	// pausedUntil is until when the destination requested a pause.
	pausedUntil time.Time
}

// report records the result of a call.
func (b *breaker) report(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.failures, b.nextPause, b.until = 0, 0, time.Time{}
		return
	}
	if b.failures++; b.failures < tripAfter || time.Now().Before(b.until) {
		return
	}
	b.nextPause = min(max(minPause, 2*b.nextPause), maxPause)
	b.until = time.Now().Add(b.nextPause)
}

// pauseFor pauses the destination as long as it requested.
func (b *breaker) pauseFor(wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until := time.Now().Add(min(wait, maxRequestedPause)); until.After(b.pausedUntil) {
		b.pausedUntil = until
	}
}

// capacity returns how many of the free calls may start now, and how long to wait if none may.
// After a pause it is one, until a call succeeds.
func (b *breaker) capacity(free, inFlight int) (int, time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wait := time.Until(b.pausedUntil); wait > 0 {
		return 0, wait
	}
	switch wait := time.Until(b.until); {
	case b.failures < tripAfter:
		return free, 0
	case wait > 0:
		return 0, wait
	case inFlight > 0:
		return 0, minPause
	}
	return min(free, 1), 0
}
