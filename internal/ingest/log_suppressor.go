package ingest

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// logInterval is the minimum time between two log lines about rejections of the same source, result
// and reason.
const logInterval = time.Minute

// logSuppressor limits log lines about rejected requests, so that a flood cannot fill the log. It
// logs the first one; the number of suppressed ones follows with the next line, or when logInterval
// is over. Its keys contain no text of a client, so their number is bounded by sources, results and
// reasons.
type logSuppressor struct {
	mu      sync.Mutex
	entries map[logKey]*suppression
}

// logKey identifies the log lines that are limited together. The source is "" for all sources that
// are not configured.
type logKey struct {
	source, result string
	reason         provider.Reason
}

type suppression struct {
	loggedAt   time.Time
	suppressed int
}

// shouldLog returns true if this rejection is to be logged, and how many were suppressed since the
// last one that was.
func (c *logSuppressor) shouldLog(key logKey, now time.Time) (suppressed int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.entries[key]
	if s == nil {
		if c.entries == nil {
			c.entries = map[logKey]*suppression{}
		}
		s = &suppression{}
		c.entries[key] = s
	}
	if now.Sub(s.loggedAt) < logInterval && !s.loggedAt.IsZero() {
		s.suppressed++
		return 0, false
	}
	suppressed, s.loggedAt, s.suppressed = s.suppressed, now, 0
	return suppressed, true
}

// takeSuppressed returns and resets the counts of suppressed lines whose last log line is at least
// logInterval old.
func (c *logSuppressor) takeSuppressed(now time.Time) map[logKey]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := map[logKey]int{}
	for key, s := range c.entries {
		if s.suppressed > 0 && now.Sub(s.loggedAt) >= logInterval {
			counts[key], s.loggedAt, s.suppressed = s.suppressed, now, 0
		}
	}
	return counts
}

// logSuppressed logs the counts of suppressed lines that no further rejection has reported.
func (s *Server) logSuppressed(now time.Time) {
	for key, more := range s.suppressor.takeSuppressed(now) {
		s.Logger.Info("more requests were rejected", "source", key.source, "result", key.result, "reason",
			string(key.reason), "more_since", more)
	}
}

// suppressibleLevel returns the level of a log line that an unauthenticated client can cause at
// will, and the number of suppressed lines before it. Suppressed lines have level debug.
func (s *Server) suppressibleLevel(key logKey) (level slog.Level, more int) {
	more, due := s.suppressor.shouldLog(key, time.Now())
	if !due {
		return slog.LevelDebug, 0
	}
	return slog.LevelInfo, more
}

// logLevel returns the level of a request's log line. Accepted deliveries, rejections of a verified
// sender and internal errors are always logged.
func (s *Server) logLevel(v *webhookRequest, status int) (level slog.Level, more int) {
	switch {
	case status == http.StatusInternalServerError:
		return slog.LevelError, 0
	case v.result == "accepted" || v.result == "spooled" || v.result == "handshake" || v.rejectedForContent():
		return slog.LevelInfo, 0
	}
	return s.suppressibleLevel(logKey{v.source(), v.result, v.reason})
}

// rejectedForContent returns true if the sender was verified and the delivery was rejected for its
// content.
func (v *webhookRequest) rejectedForContent() bool {
	return v.result == "conflict" || v.result == "invalid"
}

// advice returns what to do about a rejection that the operator may not have intended; "" for none.
func (v *webhookRequest) advice() string {
	switch v.result {
	case errForbiddenAddress.outcome:
		return "deliveries are rejected because their address is not in the source's allow_from; behind a proxy, " +
			"ingest.trusted_proxies must name it"
	case errRateLimited.outcome:
		return "deliveries are rejected because they exceed the source's rate_limit"
	}
	return ""
}
