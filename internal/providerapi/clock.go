package providerapi

import (
	"sync"
	"time"
)

// A Clock remembers the longest latency and the largest skew for one clockPeriod at least, and for
// two at most.
const clockPeriod = 5 * time.Minute

// Clock is a provider's clock as its responses show it. The zero Clock is this machine's clock.
type Clock struct {
	mu sync.Mutex
	// ahead is the least possible lead of the provider's clock over this machine's: a response's
	// Date is cut to the second, and the response took time to arrive.
	ahead time.Duration
	// latency is the longest of the period that began at since; previousLatency is that of the
	// period before.
	latency, previousLatency time.Duration
	since                    time.Time
	// skew is the largest skew of the period by magnitude; previousSkew is that of the period
	// before.
	skew, previousSkew time.Duration
}

// Now returns the time on the provider's clock. It is behind by the response's latency and one
// second at most, and never ahead.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// MaxLatency returns the longest time until the first byte of a response, of the last five to ten
// minutes.
func (c *Clock) MaxLatency() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rotate(time.Now())
	return max(c.latency, c.previousLatency)
}

// Skew returns by how much the provider's clock was ahead of the database's, at its largest
// magnitude in the last five to ten minutes.
func (c *Clock) Skew() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rotate(time.Now())
	return largerMagnitude(c.skew, c.previousSkew)
}

// observe records a response that arrived now, after elapsed. date and skew are the response's;
// date is zero if it had none. It returns the recent skew of the largest magnitude, and whether the
// period exceeds the tolerated skew for the first time.
func (c *Clock) observe(now time.Time, elapsed time.Duration, date time.Time,
	skew time.Duration) (largest time.Duration, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !date.IsZero() {
		c.ahead = date.Sub(now)
	}
	c.rotate(now)
	c.latency = max(c.latency, elapsed)
	first = max(c.skew.Abs(), c.previousSkew.Abs()) <= ToleratedSkew && skew.Abs() > ToleratedSkew
	c.skew = largerMagnitude(c.skew, skew)
	return largerMagnitude(c.skew, c.previousSkew), first
}

// largerMagnitude returns the one of two that is farther from 0.
func largerMagnitude(a, b time.Duration) time.Duration {
	if a.Abs() < b.Abs() {
		return b
	}
	return a
}

// rotate starts a new period if the current one is over.
func (c *Clock) rotate(now time.Time) {
	switch age := now.Sub(c.since); {
	case age >= 2*clockPeriod:
		c.latency, c.previousLatency, c.skew, c.previousSkew, c.since = 0, 0, 0, 0, now
	case age >= clockPeriod:
		c.latency, c.previousLatency, c.skew, c.previousSkew, c.since = 0, c.latency, 0, c.skew,
			c.since.Add(clockPeriod)
	}
}
