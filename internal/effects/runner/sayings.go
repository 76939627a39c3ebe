package runner

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// sayEvery is how often the log says the same of one destination, or of one rule.
const sayEvery = time.Minute

// topic is what lines of the log say of effects, and of what: a destination, or a rule.
type topic struct {
	text, of, name string
	// waits: they wait for the configuration, and are looked at again and again until it has what they wait for.
	waits bool
}

// tally is what there is to say of a topic since its last line: how many effects, and the first.
type tally struct {
	said    time.Time
	effects int
	first   []int64
	rules   []string
}

// sayings keep the log short, however many effects need somebody: of each topic a line is said at once, and what comes within a minute of it is counted for the next one.
type sayings struct {
	mu  sync.Mutex
	all map[topic]*tally
}

// add counts effects, and gives what is to be said of them now; nil: it is said later.
func (s *sayings) add(t topic, all []*ending) *tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[topic]*tally{}
	}
	l := s.all[t]
	if l == nil {
		l = &tally{}
		s.all[t] = l
	}
	for _, e := range all {
		if l.effects++; len(l.first) < fewMost {
			l.first = append(l.first, e.effect)
		}
		if len(l.rules) < fewMost && !slices.Contains(l.rules, e.rule) {
			l.rules = append(l.rules, e.rule)
		}
	}
	if !l.said.IsZero() && time.Since(l.said) < sayEvery {
		return nil
	}
	s.all[t] = &tally{said: time.Now()}
	return l
}

// rest is what was counted and is to be said by now; at the end of the process, all of it.
func (s *sayings) rest(end bool) map[topic]*tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := map[topic]*tally{}
	for t, l := range s.all {
		if !end && time.Since(l.said) < sayEvery {
			continue
		}
		delete(s.all, t)
		if l.effects > 0 {
			rest[t], s.all[t] = l, &tally{said: time.Now()}
		}
	}
	return rest
}

// anew has what waits for the configuration said again at once.
func (s *sayings) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.all, func(t topic, _ *tally) bool { return t.waits })
}
