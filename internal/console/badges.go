package console

import (
	"context"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/operations"
)

// badges remember the numbers of the menu, so that a page rarely reads them.
type badges struct {
	mu      sync.Mutex
	readAt  time.Time
	waiting operations.Waiting
}

// badgeInterval is the age from which the numbers are read again.
const badgeInterval = 10 * time.Second

// countBadges returns how many things of a page wait for an operator, by the address of the page.
// After an error the numbers are the last known ones.
func (c *Console) countBadges(ctx context.Context) map[string]int64 {
	b, now := &c.badges, c.Now()
	b.mu.Lock()
	isOld := now.Sub(b.readAt) >= badgeInterval
	if isOld {
		b.readAt = now // other pages do not wait for this read
	}
	b.mu.Unlock()
	if isOld {
		if found, err := operations.CountWaiting(ctx, c.Pages); err == nil {
			b.mu.Lock()
			b.waiting = found
			b.mu.Unlock()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]int64{"failures": b.waiting.DeadEvents, "runs": b.waiting.Runs, "effects": b.waiting.Effects}
}

// reset makes the next page read the numbers again, after a change.
func (b *badges) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readAt = time.Time{}
}
