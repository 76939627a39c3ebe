package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// complainEvery is the least time between two lines of the log.
const complainEvery = time.Minute

// Complaints logs errors of one kind at most once a minute, with how many were kept back since.
type Complaints struct {
	log     *slog.Logger
	level   slog.Level
	message string
	now     func() time.Time

	mu     sync.Mutex
	last   time.Time
	silent int
}

// NewComplaints returns the complaints that are logged under a message.
func NewComplaints(log *slog.Logger, level slog.Level, message string, now func() time.Time) *Complaints {
	return &Complaints{log: log, level: level, message: message, now: now}
}

// Handle logs an error, or keeps it back. It is what the OpenTelemetry SDK takes for errors that it has nobody else to tell.
func (c *Complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.last.IsZero() || now.Sub(c.last) >= complainEvery {
		c.log.Log(context.Background(), c.level, c.message, "error", err, "more_since", c.silent)
		c.last, c.silent = now, 0
		return
	}
	c.silent++
}
