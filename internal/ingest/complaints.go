package ingest

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// complainEvery is the least time between two lines of the log about one source and one reason for which it is refused.
const complainEvery = time.Minute

// complaints are refusals that a flood could fill the log with: the first is told, and then how many followed, with the next one or when a minute is over. They are as many as sources, results and reasons there are: what a stranger writes is in
// none of them.
type complaints struct {
	mu   sync.Mutex
	told map[complaint]*silence
}

// complaint is what is told once in a while: what became of requests, and why. The source is "" for all that are not configured.
type complaint struct {
	source, result string
	reason         provider.Reason
}

type silence struct {
	since time.Time
	kept  int
}

// due tells whether this refusal is to be told, and how many were not since the last that was.
func (c *complaints) due(about complaint, now time.Time) (since int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.told[about]
	if s == nil {
		if c.told == nil {
			c.told = map[complaint]*silence{}
		}
		s = &silence{}
		c.told[about] = s
	}
	if now.Sub(s.since) < complainEvery && !s.since.IsZero() {
		s.kept++
		return 0, false
	}
	since, s.since, s.kept = s.kept, now, 0
	return since, true
}

// left takes out how many were kept back of what was last told a minute ago or earlier.
func (c *complaints) left(now time.Time) map[complaint]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := map[complaint]int{}
	for about, s := range c.told {
		if s.kept > 0 && now.Sub(s.since) >= complainEvery {
			left[about], s.since, s.kept = s.kept, now, 0
		}
	}
	return left
}

// tellLeft tells how many were kept back of what has not come again for it.
func (s *Server) tellLeft(now time.Time) {
	for about, more := range s.complaints.left(now) {
		s.Logger.Info("more of this was refused", "source", about.source, "result", about.result, "reason", string(about.reason), "more_since", more)
	}
}

// once is the level of a line about what a stranger may send as often as he likes, with how many like it were kept back; those show where the log tells everything.
func (s *Server) once(about complaint) (level slog.Level, more int) {
	more, due := s.complaints.due(about, time.Now())
	if !due {
		return slog.LevelDebug, 0
	}
	return slog.LevelInfo, more
}

// level is that of a visit's line. Each delivery that was taken is told, each that a proven sender is refused for its own sake, and each fault of ours.
func (s *Server) level(v *visit, status int) (level slog.Level, more int) {
	switch {
	case status == http.StatusInternalServerError:
		return slog.LevelError, 0
	case v.result == "accepted" || v.result == "spooled" || v.result == "greeting" || v.mistaken():
		return slog.LevelInfo, 0
	}
	return s.once(complaint{v.source(), v.result, v.reason})
}

// mistaken: the sender was proven, and is refused for what it sent.
func (v *visit) mistaken() bool {
	return v.result == "conflict" || v.result == "invalid" || v.result == errInFlight.outcome
}

// advice is what to do about a refusal that an operator may not have meant; "": nothing.
func (v *visit) advice() string {
	switch v.result {
	case errElsewhere.outcome:
		return "deliveries are refused that come from elsewhere than the source's allow_from; behind a proxy, ingest.trusted_proxies must name it"
	case errLimited.outcome:
		return "deliveries are refused that are more than the source's rate_limit"
	}
	return ""
}
