package runner

import (
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
