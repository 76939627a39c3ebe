package runner

import "sync"

// callSlots limits the concurrent calls to destinations of one name. Destinations from before and
// after a reload share it.
type callSlots struct {
	mu       sync.Mutex
	inFlight int
}

// acquire acquires at most limit slots, if total may be in use.
func (t *callSlots) acquire(limit, total int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := max(0, min(limit, total-t.inFlight))
	t.inFlight += n
	return n
}

func (t *callSlots) release(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inFlight -= n
}
