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

// Nobody is asked before an attempt has settled. Where it is not known when that ended, or a clock that was ahead has told it, it counts from when that is noticed; what was told of the attempt stays.
func TestNobodyIsAskedBeforeItSettles(t *testing.T) {
	t.Parallel()
	const waits = "failed unknown 503 busy t"
	for name, c := range map[string]struct{ ended, state string }{
		"long ago":                  {"clock_now() - interval '2 h'", "done done 200 t"},
		"a moment ago":              {"clock_now()", waits},
		"nobody knows when":         {"NULL", waits},
		"by a clock that was ahead": {"clock_now() + interval '30 d'", waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, strings.Replace(checkedStep, "300ms", "1h", 1))
			other := b.to(t, scriptedAnswer{status: 200})
			b.doubted(t, "2 h")
			b.db.Exec(t, `UPDATE effect_steps SET doubt = 'check', status = 503, error = 'busy', reserved_at = clock_now() - interval '2 h', ended_at = `+c.ended)
			b.run(t, "a", b.pool)
			const is = `SELECT concat_ws(' ', e.state, s.state, s.status, nullif(s.error, ''), s.ended_at <= clock_now()) FROM effects e JOIN effect_steps s USING (effect)
				WHERE e.state = 'done' OR e.due BETWEEN clock_now() + interval '45 min' AND clock_now() + interval '61 min' AND e.reason LIKE '%check.settles%'`
			b.becomes(t, is, c.state)
			if n := len(other.asked()); (n == 1) != (c.state != waits) {
				t.Errorf("asked %d times", n)
			}
			if c.state == waits {
				b.db.Exec(t, `UPDATE effect_steps SET ended_at = ended_at - interval '1 h'`)
				b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
				b.becomes(t, is, "done done 200 t")
			}
		})
	}
}

// An attempt whose process died ended with the lease that it was made under, and not with the shorter one of the timeout of now, nor when somebody came by.
func TestAnAttemptEndsWithItsLease(t *testing.T) {
	t.Parallel()
	for until, state := range map[string]string{"25 min": "done done t", "1 s": "failed unknown t"} {
		t.Run(until, func(t *testing.T) {
			t.Parallel()
			b := setup(t, strings.Replace(checkedStep, "300ms", "20m", 1))
			other := b.to(t, scriptedAnswer{status: 200})
			b.doubted(t, "30 min")
			b.db.Exec(t, `UPDATE effect_steps SET state = 'reserved', doubt = 'check', reserved_at = clock_now() - interval '30 min', ended_at = NULL`)
			b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, taken_by = 'dead', taken_until = clock_now() - $1::interval`, until)
			b.run(t, "a", b.pool)
			b.becomes(t, `SELECT concat_ws(' ', e.state, s.state, s.ended_at IS NOT NULL) FROM effects e JOIN effect_steps s USING (effect)
				WHERE e.state = 'done' OR e.due > clock_now() + interval '15 min' AND s.ended_at BETWEEN s.reserved_at + interval '29 min' AND s.reserved_at + interval '30 min'`, state)
			if n := len(other.asked()); (n == 1) != (state == "done done t") {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// Of a lost answer the other side is asked, also where that settles later than the step is tried, or the attempts are used up; what it then does not say was done a person sees to.
func TestALostAnswerIsAskedForHoweverLate(t *testing.T) {
	t.Parallel()
	lost := scriptedAnswer{status: 500}
	for name, c := range map[string]struct {
		retry   string
		answers []scriptedAnswer
		want    string
		calls   string
	}{
		"it settles later":              {"age: 1s", []scriptedAnswer{lost, {status: 200}}, "done done", "POST /mail, GET /did"},
		"the last attempt":              {"attempts: 1", []scriptedAnswer{lost, {status: 200}}, "done done", "POST /mail, GET /did"},
		"it settles later, not done":    {"age: 1s", []scriptedAnswer{lost, {status: 404}}, "review failed", "POST /mail, GET /did"},
		"the last attempt, not done":    {"attempts: 1", []scriptedAnswer{lost, {status: 404}}, "review failed", "POST /mail, GET /did"},
		"it settles later, says nobody": {"age: 1s", []scriptedAnswer{lost, {status: 503}}, "review unknown", "POST /mail, GET /did"},
		"the last attempt, says nobody": {"attempts: 1", []scriptedAnswer{lost, {status: 503}}, "review unknown", "POST /mail, GET /did"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status == 200, settles: 1500ms}, retry: {first: 10ms, longest: 20ms, `+c.retry+`}}]`)
			other := b.to(t, c.answers...)
			b.plan(t, 1, 1)
			b.run(t, "a", b.pool)
			b.settled(t)
			if got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state) FROM effects e JOIN effect_steps s USING (effect)`)[0]; got != c.want {
				t.Errorf("is %s, want %s", got, c.want)
			}
			if got := strings.Join(other.asked(), ", "); got != c.calls {
				t.Errorf("calls %q, want %q", got, c.calls)
			}
		})
	}
}
