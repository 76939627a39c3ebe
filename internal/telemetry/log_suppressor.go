package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// suppressFor is the minimum time between two log lines.
const suppressFor = time.Minute

// LogSuppressor logs errors of one kind at most once a minute, with the number of errors that it
// suppressed since.
type LogSuppressor struct {
	log     *slog.Logger
	level   slog.Level
	message string
	now     func() time.Time

	mu         sync.Mutex
	loggedAt   time.Time
	suppressed int
}

// NewLogSuppressor returns a LogSuppressor for one message.
func NewLogSuppressor(log *slog.Logger, level slog.Level, message string, now func() time.Time) *LogSuppressor {
	return &LogSuppressor{log: log, level: level, message: message, now: now}
}

// Handle logs or suppresses an error. It implements the error handler of the OpenTelemetry SDK.
func (c *LogSuppressor) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); c.loggedAt.IsZero() || now.Sub(c.loggedAt) >= suppressFor {
		c.log.Log(context.Background(), c.level, c.message, "error", err, "more_since", c.suppressed)
		c.loggedAt, c.suppressed = now, 0
		return
	}
	c.suppressed++
}
