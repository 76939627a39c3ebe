package processor

import (
	"context"
	"time"

	"github.com/postern-gateway/postern/internal/changes"
)

const (
	// numberInterval is how often a processor checks for changes that another process made.
	numberInterval = 250 * time.Millisecond
	// A pause after numbering is numberPauseFactor times as long as the numbering took, between
	// minNumberPause and numberInterval. So numbering leaves time to apply events: one large
	// transaction costs less than many small ones, and numbers an object that changed several times
	// only once.
	minNumberPause    = 25 * time.Millisecond
	numberPauseFactor = 9
)

// numberChanges assigns the numbers of changes until ctx ends: soon after a commit of this process,
// and regularly for the commits of others. It logs the first of consecutive failures.
func (p *Processor) numberChanges(ctx context.Context) error {
	tick := time.NewTicker(numberInterval)
	defer tick.Stop()
	failing := false
	for {
		own := false
		select {
		case <-ctx.Done():
			return nil
		case <-p.committed:
			own = true
		case <-tick.C:
		}
		began := time.Now()
		err := p.numberAll(ctx, own)
		pause := min(max(numberPauseFactor*time.Since(began), minNumberPause), numberInterval)
		if err != nil && !failing && ctx.Err() == nil {
			p.Logger.Warn("changes have no numbers yet; retrying", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// numberAll numbers all changes that are committed. known says that there are some.
func (p *Processor) numberAll(ctx context.Context, known bool) (err error) {
	more := known
	if !known {
		more, err = changes.Unnumbered(ctx, p.Pool)
	}
	for more && err == nil {
		_, more, err = changes.Number(ctx, p.Pool)
	}
	return err
}
