package runner_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/testkit"
)

// scripted answers calls one after the other as it is told, the last answer again and again. What is not GET it takes for done where the answer says so.
type scripted struct {
	mu      sync.Mutex
	answers []scriptedAnswer
	calls   []string
}

type scriptedAnswer struct {
	status int
	body   string
	hangs  bool
	header map[string]string
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // who leaves is noticed only after it
		return
	}
	s.mu.Lock()
	a := s.answers[min(len(s.calls), len(s.answers)-1)]
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	if a.hangs {
		<-r.Context().Done()
		return
	}
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.status)
	fmt.Fprint(w, a.body)
}

func (s *scripted) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// steps of which what an answer means is asked.
const (
	onceStep    = `[{name: mail, to: sink, path: "/mail", once: true, person_resolves: true, retry: {first: 10ms, longest: 20ms}}]`
	checkedStep = `[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status == 200, settles: 300ms}, retry: {first: 10ms, longest: 20ms, attempts: 4}}]`
	askedStep   = `[{name: mail, to: sink, path: "/mail", once: true, check: {path: "/did", done: answer.status == 200, settles: 300ms}, retry: {first: 10ms, longest: 20ms, attempts: 4}}]`
	easyStep    = `[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status != 404, settles: 300ms}, retry: {first: 10ms, longest: 20ms, attempts: 4}}]`
	keyedStep   = `[{name: mail, to: sink, path: "/mail", capture: {id: id}, retry: {first: 10ms, longest: 20ms, attempts: 3}}]`
	laterStep   = `[{name: mail, to: sink, path: "/mail", once: true, person_resolves: true, retry: {first: 10ms, longest: 20ms, attempts: 3, on: [404, 423]}}]`
	createdOnly = `[{name: mail, to: sink, path: "/mail", once: true, person_resolves: true, success: [201]}]`
)

// What an answer means, for the step and for its effect, and how often anything is sent.
func TestWhatAnswersMean(t *testing.T) {
	t.Parallel()
	ok, hangs := scriptedAnswer{status: 200, body: `{"id": "a\u0000b"}`}, scriptedAnswer{hangs: true}
	of := func(status int) scriptedAnswer { return scriptedAnswer{status: status} }
	for name, c := range map[string]struct {
		step    string
		answers []scriptedAnswer
		state   string
		posts   int
	}{
		"done":                 {onceStep, []scriptedAnswer{ok}, "done done", 1},
		"4xx: it was not done": {onceStep, []scriptedAnswer{of(422)}, "review failed", 1},
		"4xx that passes: it was not done, and is":   {laterStep, []scriptedAnswer{of(423), of(404), ok}, "done done", 3},
		"4xx that was to pass, and did not":          {laterStep, []scriptedAnswer{of(404)}, "review failed", 3},
		"4xx beside those that pass":                 {laterStep, []scriptedAnswer{of(422)}, "review failed", 1},
		"a redirect: nobody knows":                   {onceStep, []scriptedAnswer{{status: 303, header: map[string]string{"Location": "/done"}}}, "review unknown", 1},
		"another 2xx than wanted: nobody knows":      {createdOnly, []scriptedAnswer{of(200)}, "review unknown", 1},
		"503 says nothing of a step that is once":    {onceStep, []scriptedAnswer{{status: 503, header: map[string]string{"Retry-After": "0"}}}, "review unknown", 1},
		"429: it was not done, and costs no attempt": {keyedStep, []scriptedAnswer{of(429), of(429), of(429), of(429), of(429), ok}, "done done", 6},
		"a doubt outlives what was not done":         {keyedStep, []scriptedAnswer{hangs, of(400)}, "review unknown", 2},
		"asked: done":                                {checkedStep, []scriptedAnswer{hangs, of(200)}, "done done", 1},
		"asked: not done":                            {checkedStep, []scriptedAnswer{hangs, of(404), ok}, "done done", 2},
		"asked: who may not say":                     {checkedStep, []scriptedAnswer{hangs, of(401)}, "review unknown", 1},
		"asked: elsewhere":                           {checkedStep, []scriptedAnswer{hangs, of(302)}, "review unknown", 1},
		"asked of what is once: done":                {askedStep, []scriptedAnswer{hangs, of(200)}, "done done", 1},
		"asked of what is once: not done":            {askedStep, []scriptedAnswer{hangs, of(404), ok}, "review unknown", 1},
		"asked: done, says who is down":              {easyStep, []scriptedAnswer{hangs, of(503)}, "review unknown", 1},
		"asked: done, says who may not":              {easyStep, []scriptedAnswer{hangs, of(401)}, "review unknown", 1},
		"asked: done, says who has gone":             {easyStep, []scriptedAnswer{hangs, of(410)}, "review unknown", 1},
		"asked: done, says half an answer":           {easyStep, []scriptedAnswer{hangs, {status: 200, body: `{}`, header: map[string]string{"Content-Length": "10"}}}, "review unknown", 1},
		"asked: done, says the second answer":        {easyStep, []scriptedAnswer{hangs, of(503), of(302), of(200)}, "done done", 1},
		"no answer, and again under its key":         {keyedStep, []scriptedAnswer{hangs, of(500), ok}, "done done", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.step)
			other := &scripted{answers: c.answers}
			server := httptest.NewServer(other)
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			b.reach[0].URL = server.URL
			b.plan(t, 1, 1)
			b.run(t, "a", b.pool)
			b.settled(t)
			var state string
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT e.state || ' ' || s.state FROM effects e JOIN effect_steps s USING (effect)`).Scan(&state); err != nil || state != c.state {
				t.Errorf("is %s, want %s, %v", state, c.state, err)
			}
			posts := 0
			for _, call := range other.asked() {
				if strings.HasPrefix(call, "POST") {
					posts++
				}
			}
			if posts != c.posts {
				t.Errorf("sent %d times, want %d: %v", posts, c.posts, other.asked())
			}
		})
	}
}

// A yes of 404 is not believed, and the reason says so.
func TestAYesThatNobodyBelieves(t *testing.T) {
	t.Parallel()
	b := attended(t, strings.Replace(checkedStep, "== 200", "== 404", 1))
	b.to(t, scriptedAnswer{status: 500}, scriptedAnswer{status: 404})
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.settled(t)
	if v := b.show(t); v.State != effects.Review || !strings.Contains(v.Reason, "asked whether it was done: status 404") || !strings.HasSuffix(v.Reason, "; it says yes, which is believed of 2xx alone") {
		t.Errorf("%s: %s", v.State, v.Reason)
	}
}

// Where no connection comes about, in whatever way, the step was not done.
func TestNothingWasSent(t *testing.T) {
	t.Parallel()
	b := setup(t, onceStep)
	proxy := testkit.Proxy(t, strings.TrimPrefix(b.sink.URL, "http://"))
	proxy.Cut()
	b.reach[0].URL = "https://" + proxy.Addr // which ends in the middle of TLS's greeting
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		var state string
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT s.state || ' ' || e.attempts FROM effects e JOIN effect_steps s USING (effect) WHERE e.state IN ('failed', 'review') AND e.attempts > 1`).Scan(&state); err != nil {
			return err
		} else if !strings.HasPrefix(state, "failed") {
			t.Fatal(state)
		}
		return nil
	})
	stop()
}

// The destination's credential is in nothing that is kept, however an answer repeats it.
func TestSecretsAreNotKept(t *testing.T) {
	t.Parallel()
	const key = `pass"word/of+mail`
	b := setup(t, strings.Replace(keyedStep, "id: id", "id: id, echo: echo", 1))
	b.reach[0].Secrets = []string{key, `pass\"word/of+mail`}
	other := &scripted{answers: []scriptedAnswer{{status: 500, body: strings.Repeat("x", 490) + key}, {status: 200, body: `{"id": 1, "echo": "pass\"word/of+mail"}`}}}
	server := httptest.NewServer(other)
	t.Cleanup(server.Close)
	b.reach[0].URL = server.URL
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	var kept string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT (SELECT string_agg(e::text, '') FROM effects e) || (SELECT string_agg(s::text, '') FROM effect_steps s)`).Scan(&kept); err != nil || strings.Contains(kept, "word/of") || !strings.Contains(kept, "***") {
		t.Errorf("%v: %s", err, kept)
	}
}
