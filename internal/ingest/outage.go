package ingest

import (
	"sync"
	"sync/atomic"
	"time"
)

// outage records whether PostgreSQL is unavailable: an append failed because of it, or all appends
// in progress stall. A successful append ends the outage.
type outage struct {
	active atomic.Bool
	mu     sync.Mutex
	// startedCh is closed during an outage.
	startedCh chan struct{}
	since     time.Time
}

func newOutage() *outage { return &outage{startedCh: make(chan struct{})} }

// begin returns true if it starts an outage, false if there is one already.
func (o *outage) begin() bool {
	if o.active.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.active.Load() {
		return false
	}
	o.since = time.Now()
	o.active.Store(true)
	close(o.startedCh)
	return true
}

// end ends the outage and returns its duration; zero if there was none.
func (o *outage) end() time.Duration {
	if !o.active.Load() {
		return 0
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.active.Load() {
		return 0
	}
	o.active.Store(false)
	o.startedCh = make(chan struct{})
	return max(time.Since(o.since), 1)
}

// started returns a channel that is closed as soon as an outage starts.
func (o *outage) started() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.startedCh
}
