package telemetry

import (
	"log/slog"
	"sync"
	"time"
)

// complainEvery is the least time between two log lines about traces that cannot be sent.
const complainEvery = time.Minute

// complaints logs an error at most once a minute, with how many were kept back since.
type complaints struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	last   time.Time
	silent int
}

func newComplaints(log *slog.Logger, now func() time.Time) *complaints {
	return &complaints{log: log, now: now}
}

// Handle takes what the SDK has nobody else to tell.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.last.IsZero() || now.Sub(c.last) >= complainEvery {
		c.log.Warn("traces are not sent", "error", err, "more_since", c.silent)
		c.last, c.silent = now, 0
		return
	}
	c.silent++
}
