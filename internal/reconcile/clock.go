package reconcile

import (
	"sync"
	"time"
)

// remembered is for how long, at least, the longest call is remembered; twice that at most.
const remembered = 5 * time.Minute

// Clock is a provider's clock as its answers tell it. The zero Clock is this machine's.
type Clock struct {
	mu sync.Mutex
	// ahead is how far the provider's clock is ahead of ours, at least: an answer's Date is cut to the second, and was on its way.
	ahead time.Duration
	// longest is that of the period that began at since, before that of the one before.
	longest, before time.Duration
	since           time.Time
}

// Now is the time on the provider's clock: at most the answers' way and a second behind it, never ahead.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// Longest is the longest time that an answer took to begin, of the last five to ten minutes.
func (c *Clock) Longest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(time.Now())
	return max(c.longest, c.before)
}

// told learns from an answer that began now, after elapsed; date is zero where it had none.
func (c *Clock) told(now time.Time, elapsed time.Duration, date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !date.IsZero() {
		c.ahead = date.Sub(now)
	}
	c.turn(now)
	c.longest = max(c.longest, elapsed)
}

// turn begins a new period where the last is over.
func (c *Clock) turn(now time.Time) {
	switch age := now.Sub(c.since); {
	case age >= 2*remembered:
		c.longest, c.before, c.since = 0, 0, now
	case age >= remembered:
		c.longest, c.before, c.since = 0, c.longest, c.since.Add(remembered)
	}
}
