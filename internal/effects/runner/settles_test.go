package runner_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What the other side did not know of when it was asked, it does after that: a step that is once is not sent again, and nobody says that it was not done.
func TestOnceIsNotSentAgainForANo(t *testing.T) {
	t.Parallel()
	b := attended(t, askedStep)
	var posts, acts atomic.Int64
	denied := make(chan struct{})
	deny := sync.OnceFunc(func() { close(denied) })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			deny()
			return
		}
		posts.Add(1)
		if _, err := io.Copy(io.Discard, r.Body); err != nil { // who leaves is noticed only after it
			return
		}
		<-r.Context().Done()
		<-denied
		acts.Add(1)
	}))
	t.Cleanup(func() { deny(); server.CloseClientConnections(); server.Close() })
	b.reach[0].URL = server.URL
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.settled(t)
	testkit.Eventually(t, patience, func() error {
		if acts.Load() != 1 {
			return errors.New("not done yet")
		}
		return nil
	})
	v := b.show(t)
	if s := v.Steps[0]; v.State != effects.Review || s.State != effects.Unknown || s.Doubt != effects.DoubtPerson || !strings.Contains(v.Reason, "the other side did not know of it") || !strings.Contains(v.Next, "postern effects resolve 1 --step mail") {
		t.Fatalf("%s; %s; %+v", v.Reason, v.Next, s)
	}
	refused(t, b.retry(t), "say what happened")
	if err := b.resolve(t, effects.Word{Step: "mail", Done: true}); err != nil {
		t.Fatal(err)
	}
	if got := b.settled(t); got["done"] != 1 || posts.Load() != 1 {
		t.Errorf("%v, sent %d times", got, posts.Load())
	}
}

// Nobody is asked before an attempt has settled, also where its process ended and the lease is all that is known of its end.
func TestNobodyIsAskedBeforeItSettles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ended string // of an attempt that was reserved two hours ago
		state string
	}{
		"long ago":             {"interval '2 h'", "done done"},
		"ended a moment ago":   {"interval '0 s'", "done done"}, // its lease ended long before
		"reserved not as long": {"", "failed unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, strings.Replace(checkedStep, "300ms", "1h", 1))
			other := b.to(t, scriptedAnswer{status: 200})
			b.doubted(t, "2 h")
			reserved := "interval '2 h'"
			if c.ended == "" {
				reserved, c.ended = "interval '10 min'", "interval '0 s'"
			}
			b.db.Exec(t, `UPDATE effect_steps SET doubt = 'check', reserved_at = clock_now() - `+reserved+`, ended_at = clock_now() - `+c.ended)
			b.run(t, "a", b.pool)
			b.becomes(t, `SELECT concat_ws(' ', e.state, s.state) FROM effects e JOIN effect_steps s USING (effect) WHERE e.state = 'done' OR e.due > clock_now() + interval '45 min' AND e.reason LIKE '%check.settles%'`, c.state)
			if n := len(other.asked()); (n == 1) != (c.state == "done done") {
				t.Errorf("asked %d times", n)
			}
		})
	}
}
