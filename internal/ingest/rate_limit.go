package ingest

import (
	"sync"
	"time"
)

// Rate bounds a source's deliveries: PerSecond on average, Burst at once, both at least 1. The zero
// Rate sets no limit.
type Rate struct{ PerSecond, Burst int }

// rateLimiter enforces a source's rate in this process. It is checked before the body is read, and
// only a verified delivery counts, so forged deliveries use up nothing. A nil rateLimiter sets no
// limit.
type rateLimiter struct {
	rate Rate
	mu   sync.Mutex
	// debtUntil is the time at which the rate has paid for all accepted deliveries.
	debtUntil time.Time
}

// clockTolerance is how far the clock must go back before the limiter resets its debt. Concurrent
// calls may pass their times in another order.
const clockTolerance = time.Second

// allows returns true if a delivery would be accepted now.
func (l *rateLimiter) allows(now time.Time) bool { return l.check(now, false) }

// take accepts a delivery and counts it.
func (l *rateLimiter) take(now time.Time) bool { return l.check(now, true) }

func (l *rateLimiter) check(now time.Time, consume bool) bool {
	if l == nil {
		return true
	}
	interval := time.Second / time.Duration(l.rate.PerSecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	burst := interval * time.Duration(l.rate.Burst)
	debt := max(l.debtUntil.Sub(now), 0)
	if debt > burst+max(burst, clockTolerance) { // impossible unless the clock was set back
		debt = burst
		l.debtUntil = now.Add(debt)
	}
	if debt > burst-interval {
		return false
	}
	if consume {
		l.debtUntil = now.Add(debt + interval)
	}
	return true
}

// assignLimiters sets the limiters of endpoints. An endpoint whose rate is unchanged keeps its
// limiter and its counts.
func assignLimiters(endpoints, before map[string]Endpoint) {
	for name, ep := range endpoints {
		switch old := before[name].limiter; {
		case ep.Rate == Rate{}:
			ep.limiter = nil
		case old != nil && old.rate == ep.Rate:
			ep.limiter = old
		default:
			ep.limiter = &rateLimiter{rate: ep.Rate}
		}
		endpoints[name] = ep
	}
}
