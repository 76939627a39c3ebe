package runner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/mail"
)

// A destination that answers nothing is left alone after five calls in a row, for a second and then for twice as long each time, up to a minute; then one call shows whether it is back.
func TestADeadDestinationIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		wants := func(free, underWay, room int, pause time.Duration) {
			t.Helper()
			if got, wait := b.room(free, underWay); got != room || wait != pause {
				t.Fatalf("room for %d after %s, want %d after %s", got, wait, room, pause)
			}
		}
		for range tripsAfter - 1 {
			b.tell(false)
			wants(8, 0, 8, 0)
		}
		b.tell(true) // which has the next five count anew
		for range tripsAfter - 1 {
			b.tell(false)
			wants(8, 0, 8, 0)
		}
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			pause *= time.Second
			b.tell(false)
			b.tell(false) // of a call that was under way: it makes the break no longer
			wants(8, 0, 0, pause)
			<-time.After(pause - 1)
			wants(8, 0, 0, 1)
			<-time.After(1)
			wants(8, 0, 1, 0)
			wants(7, 1, 0, firstBreak) // while that one is under way
		}
		b.tell(true)
		wants(8, 0, 8, 0)
	})
}

// One that asks to be left alone is, and no longer than ten minutes, whatever it says.
func TestADestinationThatAsksForItIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for _, asked := range []time.Duration{time.Minute, 24 * time.Hour} {
			b.rest(asked)
			b.rest(time.Second) // of another call: the longer one counts
			pause := min(asked, 10*time.Minute)
			if room, wait := b.room(8, 0); room != 0 || wait != pause {
				t.Fatalf("room for %d after %s, want none for %s", room, wait, pause)
			}
			<-time.After(pause)
			if room, wait := b.room(8, 0); room != 8 || wait != 0 {
				t.Fatalf("room for %d after %s", room, wait)
			}
		}
	})
}

// A destination that is left alone is so across reloads, as long as it is the same other side.
func TestABreakOutlivesReloads(t *testing.T) {
	t.Parallel()
	api, post := config.Reach{Name: "api", URL: "https://api.example.com", Concurrency: 8}, config.Reach{Name: "post", Mail: &mail.Server{Host: "smtp.example.com", Port: 587}, Concurrency: 8}
	r := New(Options{})
	r.Replace(nil, []config.Reach{api, post})
	for range tripsAfter {
		r.destinations["post"].breaker.tell(false)
	}
	r.destinations["api"].breaker.rest(longestRest)
	wants := func(free int, names ...string) {
		t.Helper()
		for _, name := range names {
			if room, _ := r.destinations[name].breaker.room(8, 0); room != free {
				t.Errorf("%s: room for %d, want %d", name, room, free)
			}
		}
	}
	wants(0, "api", "post")
	api.Concurrency, post.Timeout = 9, time.Minute
	r.Replace(nil, []config.Reach{api, post})
	wants(0, "api", "post")
	api.URL += "/v2"
	post.Mail = &mail.Server{Host: "smtp.example.com", Port: 465}
	r.Replace(nil, []config.Reach{api, post})
	wants(8, "api", "post")
}

// A line of a topic is said at once, and what comes within a minute of it is counted: it is said with what comes next, or by itself once the minute is over, and nothing of it twice.
func TestTheLogSaysTheSameOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sayings
		said := func(l *tally) string {
			if l == nil {
				return "nothing"
			}
			return fmt.Sprint(l.effects, l.first, l.rules)
		}
		sink, other, gone := topic{text: "x", of: "destination", name: "sink"}, topic{text: "x", of: "destination", name: "other"}, topic{text: "y", of: "rule", name: "r", waits: true}
		next := int64(0)
		adds := func(t *testing.T, to topic, n int, rule, want string) {
			t.Helper()
			var all []*ending
			for range n {
				next++
				all = append(all, &ending{effect: next, rule: rule})
			}
			if got := said(s.add(to, all)); got != want {
				t.Errorf("said %s, want %s", got, want)
			}
		}
		rests := func(t *testing.T, end bool, to topic, want string) {
			t.Helper()
			rest := s.rest(end)
			if got := said(rest[to]); got != want || len(rest) > 1 {
				t.Errorf("said %s of %v, want %s", got, rest, want)
			}
		}
		adds(t, sink, 2, "a", "2 [1 2] [a]")
		adds(t, sink, 7, "a", "nothing")
		adds(t, sink, 1, "b", "nothing")
		adds(t, other, 1, "a", "1 [11] [a]")
		adds(t, gone, 1, "r", "1 [12] [r]")
		rests(t, false, sink, "nothing")
		<-time.After(sayEvery - 1)
		adds(t, sink, 1, "b", "nothing")
		<-time.After(1)
		rests(t, false, sink, "9 [3 4 5 6 7] [a b]")
		rests(t, false, sink, "nothing")
		adds(t, sink, 1, "a", "nothing")
		<-time.After(sayEvery)
		adds(t, sink, 1, "a", "2 [14 15] [a]")
		<-time.After(sayEvery)
		rests(t, false, sink, "nothing")
		if len(s.all) != 0 {
			t.Errorf("keeps %v", s.all)
		}
		adds(t, gone, 1, "r", "1 [16] [r]")
		adds(t, sink, 1, "a", "1 [17] [a]")
		s.anew()
		adds(t, gone, 1, "r", "1 [18] [r]")
		adds(t, sink, 2, "a", "nothing")
		rests(t, true, sink, "2 [19 20] [a]")
	})
}
