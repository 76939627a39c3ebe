package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// SuppressFor is the minimum time between two log lines with the same key.
const SuppressFor = time.Minute

// Suppressor limits log lines, so that a flood cannot fill the log. The first line of a key is
// logged, and then at most one in SuppressFor, with the number of suppressed ones. The caller
// bounds the number of keys. The zero value is ready.
type Suppressor[K comparable] struct {
	mu      sync.Mutex
	entries map[K]*suppression
}

type suppression struct {
	loggedAt   time.Time
	suppressed int
}

// Due returns true if a line is to be logged now, and how many were suppressed since the last one.
func (s *Suppressor[K]) Due(key K, now time.Time) (suppressed int, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		if s.entries == nil {
			s.entries = map[K]*suppression{}
		}
		e = &suppression{}
		s.entries[key] = e
	}
	if now.Sub(e.loggedAt) < SuppressFor && !e.loggedAt.IsZero() {
		e.suppressed++
		return 0, false
	}
	suppressed, e.loggedAt, e.suppressed = e.suppressed, now, 0
	return suppressed, true
}

// TakeSuppressed returns and resets the counts of suppressed lines whose last log line is at least
// SuppressFor old.
func (s *Suppressor[K]) TakeSuppressed(now time.Time) map[K]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := map[K]int{}
	for key, e := range s.entries {
		if e.suppressed > 0 && now.Sub(e.loggedAt) >= SuppressFor {
			counts[key], e.loggedAt, e.suppressed = e.suppressed, now, 0
		}
	}
	return counts
}

// LogSuppressor logs errors of one kind at most once in SuppressFor.
type LogSuppressor struct {
	log     *slog.Logger
	level   slog.Level
	message string
	now     func() time.Time
	lines   Suppressor[struct{}]
}

// NewLogSuppressor returns a LogSuppressor for one message.
func NewLogSuppressor(log *slog.Logger, level slog.Level, message string, now func() time.Time) *LogSuppressor {
	return &LogSuppressor{log: log, level: level, message: message, now: now}
}

// Handle logs or suppresses an error. It implements the error handler of the OpenTelemetry SDK.
func (c *LogSuppressor) Handle(err error) {
	if more, due := c.lines.Due(struct{}{}, c.now()); due {
		c.log.Log(context.Background(), c.level, c.message, "error", err, "more_since", more)
	}
}
