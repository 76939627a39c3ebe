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
	// skew is the one that is farthest from 0 of the period, skewed that of the one before.
	skew, skewed time.Duration
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

// Skew is the one farthest from 0 of the last five to ten minutes, of how far the provider's clock was ahead of the database's.
func (c *Clock) Skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(time.Now())
	return farther(c.skew, c.skewed)
}

// told learns from an answer that began now, after elapsed; date is zero where it had none. skew is its own; it returns the one that was farthest from 0 of late, and whether that is said for
// the first time in the period.
func (c *Clock) told(now time.Time, elapsed time.Duration, date time.Time, skew time.Duration) (of time.Duration, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !date.IsZero() {
		c.ahead = date.Sub(now)
	}
	c.turn(now)
	c.longest = max(c.longest, elapsed)
	first = max(c.skew.Abs(), c.skewed.Abs()) <= tolerated && skew.Abs() > tolerated
	c.skew = farther(c.skew, skew)
	return farther(c.skew, c.skewed), first
}

// farther is the one of two that is farther from 0.
func farther(a, b time.Duration) time.Duration {
	if a.Abs() < b.Abs() {
		return b
	}
	return a
}

// turn begins a new period where the last is over.
func (c *Clock) turn(now time.Time) {
	switch age := now.Sub(c.since); {
	case age >= 2*remembered:
		c.longest, c.before, c.skew, c.skewed, c.since = 0, 0, 0, 0, now
	case age >= remembered:
		c.longest, c.before, c.skew, c.skewed, c.since = 0, c.longest, 0, c.skew, c.since.Add(remembered)
	}
}
