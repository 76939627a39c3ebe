package ingest

import (
	"sync"
	"sync/atomic"
	"time"
)

// outage is whether the store is away: an append has failed for its sake, or none of those under way ends. It is over when an append has ended well.
type outage struct {
	away atomic.Bool
	mu   sync.Mutex
	// begun is closed while the store is away.
	begun chan struct{}
	since time.Time
}

func newOutage() *outage { return &outage{begun: make(chan struct{})} }

// begin is true where the store was there until now.
func (o *outage) begin() bool {
	if o.away.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away.Load() {
		return false
	}
	o.since = time.Now()
	o.away.Store(true)
	close(o.begun)
	return true
}

// end tells how long the store was away; zero: it was not.
func (o *outage) end() time.Duration {
	if !o.away.Load() {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.away.Load() {
		return 0
	}
	o.away.Store(false)
	o.begun = make(chan struct{})
	return max(time.Since(o.since), 1)
}

// begins is closed as soon as the store is away.
func (o *outage) begins() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}
