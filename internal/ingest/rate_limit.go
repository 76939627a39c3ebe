package ingest

import (
	"time"

	"golang.org/x/time/rate"
)

// Rate bounds a source's deliveries: PerSecond on average, Burst at once, both at least 1. The zero
// Rate sets no limit.
type Rate struct{ PerSecond, Burst int }

// rateLimiter enforces a source's rate in this process. It is checked before the body is read, and
// only a verified delivery counts, so forged deliveries use up nothing. A nil rateLimiter sets no
// limit.
type rateLimiter struct {
	rate    Rate
	limiter *rate.Limiter
}

// allows returns true if a delivery would be accepted now.
func (l *rateLimiter) allows(now time.Time) bool { return l == nil || l.limiter.TokensAt(now) >= 1 }

// take accepts a delivery and counts it.
func (l *rateLimiter) take(now time.Time) bool { return l == nil || l.limiter.AllowN(now, 1) }

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
			ep.limiter = &rateLimiter{ep.Rate, rate.NewLimiter(rate.Limit(ep.Rate.PerSecond), ep.Rate.Burst)}
		}
		endpoints[name] = ep
	}
}
