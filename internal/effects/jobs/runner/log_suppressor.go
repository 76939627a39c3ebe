package runner

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// logEvery is the interval of equal log lines about one destination or one rule.
const logEvery = time.Minute

// logTopic is a log line about effects, with the destination or the rule that it is about.
type logTopic struct {
	text, label, name string
	// repeats reports that the effects wait for the configuration, and are checked again and again
	// until it has what they need.
	repeats bool
}

// suppressedCount counts the effects of a topic since its last line, and holds the first ones.
type suppressedCount struct {
	loggedAt time.Time
	effects  int
	first    []int64
	rules    []string
}

// logSuppressor limits the log lines about effects. The first line of a topic is logged at once.
// Further effects within a minute are counted for its next line.
type logSuppressor struct {
	mu  sync.Mutex
	all map[logTopic]*suppressedCount
}

// add counts effects and returns what to log now; nil if it is logged later.
func (s *logSuppressor) add(t logTopic, all []*result) *suppressedCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[logTopic]*suppressedCount{}
	}
	l := s.all[t]
	if l == nil {
		l = &suppressedCount{}
		s.all[t] = l
	}
	for _, e := range all {
		if l.effects++; len(l.first) < maxNamed {
			l.first = append(l.first, e.effect)
		}
		if len(l.rules) < maxNamed && !slices.Contains(l.rules, e.rule) {
			l.rules = append(l.rules, e.rule)
		}
	}
	if !l.loggedAt.IsZero() && time.Since(l.loggedAt) < logEvery {
		return nil
	}
	s.all[t] = &suppressedCount{loggedAt: time.Now()}
	return l
}

// pending returns the counts that are due; at the end of the process, all of them.
func (s *logSuppressor) pending(end bool) map[logTopic]*suppressedCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	pending := map[logTopic]*suppressedCount{}
	for t, l := range s.all {
		if !end && time.Since(l.loggedAt) < logEvery {
			continue
		}
		delete(s.all, t)
		if l.effects > 0 {
			pending[t], s.all[t] = l, &suppressedCount{loggedAt: time.Now()}
		}
	}
	return pending
}

// resetRepeating makes lines about effects that wait for the configuration due at once.
func (s *logSuppressor) resetRepeating() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(t logTopic, _ *suppressedCount) bool { return t.repeats })
}
