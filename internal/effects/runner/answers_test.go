package runner_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

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
			other := b.to(t, c.answers...)
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

// The reason says what another side said that was asked: a yes of 404 is not believed, and a no does not have what is once sent again.
func TestWhatIsSaidOfAChecksAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ steps, reason string }{
		"a yes that is not believed": {strings.Replace(checkedStep, "== 200", "== 404", 1), "it says yes, which is believed of 2xx alone"},
		"a no of what is once":       {askedStep, "the other side did not know of it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, c.steps)
			b.to(t, scriptedAnswer{status: 500}, scriptedAnswer{status: 404})
			b.plan(t, 1, 1)
			b.run(t, "a", b.pool)
			b.settled(t)
			if v := b.show(t); v.State != effects.Review || !strings.Contains(v.Reason, c.reason) {
				t.Errorf("%s: %s", v.State, v.Reason)
			}
		})
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
	b.to(t, scriptedAnswer{status: 500, body: strings.Repeat("x", 490) + key},
		scriptedAnswer{status: 200, body: `{"id": 1, "echo": "pass\"word/of+mail"}`})
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

// asked is a request that waits for its answer.
type asked struct {
	path, body string
	answer     chan string
}

// answering is another side that hands each request over and answers what it is told.
func answering(t *testing.T) (url string, requests chan asked) {
	t.Helper()
	requests = make(chan asked, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		a := asked{r.URL.Path, string(body), make(chan string)}
		requests <- a
		select {
		case text := <-a.answer:
			if text == "" {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
			}
			fmt.Fprint(w, text)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL, requests
}

// waits waits until somebody waits for a lock.
func (b *bundle) waits(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := b.db.Rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)[0]; n == "0" {
			return fmt.Errorf("nobody waits: %v", b.states(t))
		}
		return nil
	})
}

const slowSteps = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, timeout: 60s, retry: {first: 10ms, longest: 50ms}}
      - {name: invoice, to: sink, path: "/invoices", json: {customer: "{{ steps.customer.id }}"}, timeout: 60s, retry: {first: 10ms, longest: 50ms}}`

// An answer that comes when the same process has begun another attempt ends nothing: that one does.
func TestALateAnswerEndsNoOtherAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, slowSteps)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	first := <-requests
	b.db.Exec(t, `UPDATE effects SET taken_until = clock_now() - interval '1 s'`)
	second := <-requests
	hold, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	first.answer <- `{"id": "first"}`
	b.waits(t) // the first answer is recorded as soon as it may
	second.answer <- ""
	must(t, hold.Commit(t.Context()))
	third := <-requests
	if third.path != "/customers" {
		t.Fatalf("%s %s", third.path, third.body)
	}
	third.answer <- `{"id": "third"}`
	last := <-requests
	last.answer <- `{}`
	if got := b.settled(t); got["done"] != 1 || last.body != `{"customer":"third"}` {
		t.Errorf("%v %s", got, last.body)
	}
	if diff := cmp.Diff([]string{"customer done third", "invoice done"}, b.db.Rows(t, `SELECT concat_ws(' ', step, state, captured->>'id') FROM effect_steps ORDER BY place`)); diff != "" {
		t.Error(diff)
	}
}

// What is redacted while an answer waits to be recorded stays redacted: nothing of the answer is kept.
func TestNothingOfAnAnswerOutlivesARedaction(t *testing.T) {
	t.Parallel()
	b := setup(t, slowSteps)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	first := <-requests
	redacts, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	for _, sql := range []string{`UPDATE effects SET facts = NULL, reason = ''`, `UPDATE effect_steps SET request = NULL, captured = '{}', error = ''`} {
		if _, err := redacts.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	first.answer <- `{"id": "ada@example.org"}`
	b.waits(t)
	must(t, redacts.Commit(t.Context()))
	b.settled(t)
	if diff := cmp.Diff([]string{"customer done {}"}, b.db.Rows(t, `SELECT concat_ws(' ', step, state, captured, nullif(error, '')) FROM effect_steps ORDER BY place`)); diff != "" {
		t.Error(diff)
	}
}
