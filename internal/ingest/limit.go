package ingest

import (
	"sync"
	"time"
)

// Rate is how many deliveries a source may send: PerSecond over time, Burst at once, both at least 1. The zero Rate: as many as it likes.
type Rate struct{ PerSecond, Burst int }

// limit keeps a source to its rate, in the memory of this process. It is asked before a body is read, and paid once the sender is proven: a flood of
// forgeries uses up nothing. A nil limit is none.
type limit struct {
	rate Rate
	mu   sync.Mutex
	// free is when all that was taken will have been earned.
	free time.Time
}

// setBack is how far at least a time lies before another for the clock to have been set back: two that ask at once may come in the other order.
const setBack = time.Second

// open tells whether a delivery would be let through now.
func (l *limit) open(now time.Time) bool { return l.pass(now, false) }

// take lets a delivery through, which then counts.
func (l *limit) take(now time.Time) bool { return l.pass(now, true) }

func (l *limit) pass(now time.Time, pay bool) bool {
	if l == nil {
		return true
	}
	each := time.Second / time.Duration(l.rate.PerSecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	most := each * time.Duration(l.rate.Burst)
	owed := max(l.free.Sub(now), 0)
	if owed > most+max(most, setBack) { // nobody can: the clock was set back
		owed = most
		l.free = now.Add(owed)
	}
	if owed > most-each {
		return false
	}
	if pay {
		l.free = now.Add(owed + each)
	}
	return true
}

// limited gives endpoints their limits. What was taken under a rate still counts where the rate stays.
func limited(endpoints, before map[string]Endpoint) {
	for name, ep := range endpoints {
		switch old := before[name].limit; {
		case ep.Rate == Rate{}:
			ep.limit = nil
		case old != nil && old.rate == ep.Rate:
			ep.limit = old
		default:
			ep.limit = &limit{rate: ep.Rate}
		}
		endpoints[name] = ep
	}
}
