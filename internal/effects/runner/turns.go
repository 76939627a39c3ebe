package runner

import "sync"

// turns are the calls that may be under way to a destination of one name, whatever reloads there are meanwhile: those of before and those of now have them together.
type turns struct {
	mu       sync.Mutex
	underWay int
}

// get gets turns, at most so many, for a destination that has so many in all.
func (t *turns) get(most, all int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := max(0, min(most, all-t.underWay))
	t.underWay += n
	return n
}

func (t *turns) give(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.underWay -= n
}
