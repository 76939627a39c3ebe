package ingest

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// logKey identifies the log lines about rejected requests that are limited together. It contains no
// text of a client, so the number of keys is bounded by sources, results and reasons. The source is
// "" for all sources that are not configured.
type logKey struct {
	source, result string
	reason         provider.Reason
}

// logSuppressed logs the counts of suppressed lines that no further rejection has reported.
func (s *Server) logSuppressed(now time.Time) {
	for key, more := range s.suppressor.TakeSuppressed(now) {
		s.Logger.Info("more requests were rejected", "source", key.source, "result", key.result, "reason",
			string(key.reason), "more_since", more)
	}
}

// suppressibleLevel returns the level of a log line that an unauthenticated client can cause at
// will, and the number of suppressed lines before it. Suppressed lines have level debug.
func (s *Server) suppressibleLevel(key logKey) (level slog.Level, more int) {
	more, due := s.suppressor.Due(key, time.Now())
	if !due {
		return slog.LevelDebug, 0
	}
	return slog.LevelInfo, more
}

// logLevel returns the level of a request's log line. Accepted deliveries, rejections of a verified
// sender and internal errors are always logged.
func (s *Server) logLevel(r *webhookRequest, status int) (level slog.Level, more int) {
	switch {
	case status == http.StatusInternalServerError:
		return slog.LevelError, 0
	case r.result == "accepted" || r.result == "spooled" || r.result == "handshake" || r.rejectedForContent():
		return slog.LevelInfo, 0
	}
	return s.suppressibleLevel(logKey{r.source(), r.result, r.reason})
}

// rejectedForContent returns true if the sender was verified and the delivery was rejected for its
// content.
func (r *webhookRequest) rejectedForContent() bool {
	return r.result == "conflict" || r.result == "invalid"
}

// advice returns what to do about a rejection that the operator may not have intended; "" for none.
func (r *webhookRequest) advice() string {
	switch r.result {
	case errForbiddenAddress.outcome:
		return "deliveries are rejected because their address is not in the source's allow_from; behind a proxy, " +
			"ingest.trusted_proxies must name it"
	case errRateLimited.outcome:
		return "deliveries are rejected because they exceed the source's rate_limit"
	}
	return ""
}
