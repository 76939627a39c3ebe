package runner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/mail"
)

// A destination that does not respond is paused after five consecutive failures, for a second, and
// then twice as long each time, up to a minute. After a pause, one call tests it.
func TestBreaker_failingDestination_isPaused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		wants := func(free, inFlight, want int, pause time.Duration) {
			t.Helper()
			if got, wait := b.capacity(free, inFlight); got != want || wait != pause {
				t.Fatalf("capacity %d after %s, want %d after %s", got, wait, want, pause)
			}
		}
		for range tripAfter - 1 {
			b.report(false)
			wants(8, 0, 8, 0)
		}
		b.report(true) // the next five failures count from zero
		for range tripAfter - 1 {
			b.report(false)
			wants(8, 0, 8, 0)
		}
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			pause *= time.Second
			b.report(false)
			b.report(false) // the result of a call that was already in progress does not extend the pause
			wants(8, 0, 0, pause)
			<-time.After(pause - 1)
			wants(8, 0, 0, 1)
			<-time.After(1)
			wants(8, 0, 1, 0)
			wants(7, 1, 0, minPause) // while that call is in progress
		}
		b.report(true)
		wants(8, 0, 8, 0)
	})
}

// A destination that requests a pause is paused, for ten minutes at most.
func TestBreaker_requestedPause_isBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for _, requested := range []time.Duration{time.Minute, 24 * time.Hour} {
			b.pauseFor(requested)
			b.pauseFor(time.Second) // of another call: the longer pause counts
			pause := min(requested, 10*time.Minute)
			if capacity, wait := b.capacity(8, 0); capacity != 0 || wait != pause {
				t.Fatalf("capacity %d after %s, want none for %s", capacity, wait, pause)
			}
			<-time.After(pause)
			if capacity, wait := b.capacity(8, 0); capacity != 8 || wait != 0 {
				t.Fatalf("capacity %d after %s", capacity, wait)
			}
		}
	})
}

// The pause of a destination continues after a reload, if the destination is the same system.
func TestReplace_sameDestination_keepsItsPause(t *testing.T) {
	t.Parallel()
	api, post := config.ResolvedDestination{Name: "api", URL: "https://api.example.com", Concurrency: 8},
		config.ResolvedDestination{Name: "post", Mail: &mail.Server{Host: "smtp.example.com", Port: 587},
			Concurrency: 8}
	r := New(Options{})
	r.Replace(nil, []config.ResolvedDestination{api, post})
	for range tripAfter {
		r.destinations["post"].breaker.report(false)
	}
	r.destinations["api"].breaker.pauseFor(maxRequestedPause)
	wants := func(free int, names ...string) {
		t.Helper()
		for _, name := range names {
			if capacity, _ := r.destinations[name].breaker.capacity(8, 0); capacity != free {
				t.Errorf("%s: capacity %d, want %d", name, capacity, free)
			}
		}
	}
	wants(0, "api", "post")
	api.Concurrency, post.Timeout = 9, time.Minute
	r.Replace(nil, []config.ResolvedDestination{api, post})
	wants(0, "api", "post")
	api.URL += "/v2"
	post.Mail = &mail.Server{Host: "smtp.example.com", Port: 465}
	r.Replace(nil, []config.ResolvedDestination{api, post})
	wants(8, "api", "post")
}

// The first line of a topic is logged at once. Effects within the next minute are counted. They are
// logged with the next line, or when the minute is over, and only once.
func TestLogSuppressor_equalLines_onceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s logSuppressor
		format := func(l *suppressedCount) string {
			if l == nil {
				return "nothing"
			}
			return fmt.Sprint(l.effects, l.first, l.rules)
		}
		sink, other, missing := logTopic{text: "x", label: "destination", name: "sink"},
			logTopic{text: "x", label: "destination", name: "other"}, logTopic{text: "y", label: "rule", name: "r",
				repeats: true}
		next := int64(0)
		adds := func(t *testing.T, to logTopic, n int, rule, want string) {
			t.Helper()
			var all []*result
			for range n {
				next++
				all = append(all, &result{effect: next, rule: rule})
			}
			if got := format(s.add(to, all)); got != want {
				t.Errorf("logged %s, want %s", got, want)
			}
		}
		rests := func(t *testing.T, end bool, to logTopic, want string) {
			t.Helper()
			rest := s.pending(end)
			if got := format(rest[to]); got != want || len(rest) > 1 {
				t.Errorf("logged %s of %v, want %s", got, rest, want)
			}
		}
		adds(t, sink, 2, "a", "2 [1 2] [a]")
		adds(t, sink, 7, "a", "nothing")
		adds(t, sink, 1, "b", "nothing")
		adds(t, other, 1, "a", "1 [11] [a]")
		adds(t, missing, 1, "r", "1 [12] [r]")
		rests(t, false, sink, "nothing")
		<-time.After(logEvery - 1)
		adds(t, sink, 1, "b", "nothing")
		<-time.After(1)
		rests(t, false, sink, "9 [3 4 5 6 7] [a b]")
		rests(t, false, sink, "nothing")
		adds(t, sink, 1, "a", "nothing")
		<-time.After(logEvery)
		adds(t, sink, 1, "a", "2 [14 15] [a]")
		<-time.After(logEvery)
		rests(t, false, sink, "nothing")
		if len(s.all) != 0 {
			t.Errorf("still has %v", s.all)
		}
		adds(t, missing, 1, "r", "1 [16] [r]")
		adds(t, sink, 1, "a", "1 [17] [a]")
		s.resetRepeating()
		adds(t, missing, 1, "r", "1 [18] [r]")
		adds(t, sink, 2, "a", "nothing")
		rests(t, true, sink, "2 [19 20] [a]")
	})
}
