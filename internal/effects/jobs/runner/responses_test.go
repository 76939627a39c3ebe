package runner_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

// scripted responds to calls in order, and repeats its last response. It counts a call other than
// GET as executed if the response says so.
type scripted struct {
	mu        sync.Mutex
	responses []scriptedResponse
	calls     []string
}

type scriptedResponse struct {
	status int
	body   string
	hangs  bool
	header map[string]string
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// the server notices a closed connection only after it has read the body
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	s.mu.Lock()
	a := s.responses[min(len(s.calls), len(s.responses)-1)]
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

func (s *scripted) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// wantCalls checks the number of calls.
func (s *scripted) wantCalls(t *testing.T, want int) {
	t.Helper()
	if calls := s.received(); len(calls) != want {
		t.Errorf("calls %q, want %d", calls, want)
	}
}

// serve starts a server until the test ends.
func serve(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s.URL
}

// row is a row of a test whose rows share a database: the steps of its rule, which name the
// destination sink, and the responses of its own destination.
type row struct {
	steps     string
	responses []scriptedResponse
}

// setupRows plans an effect for each row, and returns its number and destination.
func setupRows(t *testing.T, rows map[string]row) (b *fixture, numbers map[string]int64,
	destinations map[string]*scripted) {
	t.Helper()
	b, numbers, destinations = setupWithSource(t, twoSteps), map[string]int64{}, map[string]*scripted{}
	const rule = "  %[1]s:\n    source: shop\n    type: %[1]s\n    key: '%[1]s:{{ object.id }}'\n    steps: %[2]s\n"
	var to, list strings.Builder
	names := slices.Sorted(maps.Keys(rows))
	for n, name := range names {
		numbers[name], destinations[name] = int64(n+1), &scripted{responses: rows[name].responses}
		own := fmt.Sprint("row", n+1)
		fmt.Fprintf(&to, "  %s: {url: %q, allow: [127.0.0.1], timeout: 2s}\n", own,
			serve(t, destinations[name].ServeHTTP))
		fmt.Fprintf(&list, rule, own, strings.ReplaceAll(rows[name].steps, "to: sink", "to: "+own))
	}
	b.configure(t, "destinations:\n%seffects:\n%s", to.String(), list.String())
	for n := range names {
		b.insert(t, b.rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: fmt.Sprint("row", n+1),
			ID: "1", New: []byte(`{"total": 1}`), Event: effects.Event{ID: int64(n + 1)}}))
	}
	return b, numbers, destinations
}

// executed is the result of a row: the states of the effect and of its steps, the effect's reason,
// its steps in the ledger, and the calls.
type executed struct {
	states, reason string
	steps, calls   []string
}

// executeRows executes the effect of each row.
func executeRows(t *testing.T, rows map[string]row) map[string]executed {
	t.Helper()
	b, numbers, destinations := setupRows(t, rows)
	b.launch(t, runner.Options{Settings: patientSettings})
	b.waitIdle(t)
	all := map[string]executed{}
	for name, number := range numbers {
		e := b.db.QueryStrings(t, `SELECT unnest(ARRAY[concat_ws(' ', state, (SELECT string_agg(s.state, ' '
			ORDER BY position) FROM effect_steps s WHERE s.effect = e.effect)), reason])
			FROM effects e WHERE effect = $1`, number)
		all[name] = executed{e[0], e[1], b.stepRows(t, number), destinations[name].received()}
	}
	return all
}

// Steps for the tests of responses.
const (
	neverRepeatedStep = `[{name: mail, to: sink, path: "/mail", at_most_once: true, operator_resolves: true, ` +
		`retry: {first_wait: 10ms, max_wait: 20ms}}]`
	checkedStep = `[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status == 200, ` +
		`delay: 300ms}, retry: {first_wait: 10ms, max_wait: 20ms, attempts: 4}}]`
	checkOnlyStep = `[{name: mail, to: sink, path: "/mail", at_most_once: true, check: {path: "/did", ` +
		`done: answer.status == 200, delay: 300ms}, retry: {first_wait: 10ms, max_wait: 20ms, attempts: 4}}]`
	easyStep = `[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status != 404, ` +
		`delay: 300ms}, retry: {first_wait: 10ms, max_wait: 20ms, attempts: 4}}]`
	keyedStep = `[{name: mail, to: sink, path: "/mail", capture: {id: id}, retry: {first_wait: 10ms, ` +
		`max_wait: 20ms, attempts: 3}}]`
	laterStep = `[{name: mail, to: sink, path: "/mail", at_most_once: true, operator_resolves: true, ` +
		`retry: {first_wait: 10ms, max_wait: 20ms, attempts: 3, on: [404, 423]}}]`
	createdOnly = `[{name: mail, to: sink, path: "/mail", at_most_once: true, operator_resolves: true, success: [201]}]`
)

// A response decides the state of the step and of its effect, and how often requests are sent.
func TestPerform_responses_setStepAndEffectState(t *testing.T) {
	t.Parallel()
	ok, hangs := scriptedResponse{status: 200, body: `{"id": "a\u0000b"}`}, scriptedResponse{hangs: true}
	of := func(status int) scriptedResponse { return scriptedResponse{status: status} }
	tests := map[string]struct {
		step      string
		responses []scriptedResponse
		states    string
		posts     int
	}{
		"done": {neverRepeatedStep, []scriptedResponse{ok}, "done done", 1},
		"4xx: not executed": {neverRepeatedStep, []scriptedResponse{of(422)}, "needs_review failed",
			1},
		"4xx to retry: not executed, then done": {laterStep, []scriptedResponse{of(423), of(404), ok}, "done done", 3},
		"4xx to retry: attempts used up":        {laterStep, []scriptedResponse{of(404)}, "needs_review failed", 3},
		"4xx, not one to retry":                 {laterStep, []scriptedResponse{of(422)}, "needs_review failed", 1},
		"redirect: unknown outcome": {neverRepeatedStep, []scriptedResponse{{status: 303,
			header: map[string]string{"Location": "/done"}}}, "needs_review unknown", 1},
		"another 2xx than expected: unknown outcome": {createdOnly, []scriptedResponse{of(200)}, "needs_review unknown",
			1},
		"503, step that is not repeated: unknown outcome": {neverRepeatedStep, []scriptedResponse{{status: 503,
			header: map[string]string{"Retry-After": "0"}}}, "needs_review unknown", 1},
		"429: not executed, costs no attempt": {keyedStep, []scriptedResponse{of(429), of(429), of(429), of(429),
			of(429), ok}, "done done", 6},
		"unknown outcome stays after a 4xx": {keyedStep, []scriptedResponse{hangs, of(400)}, "needs_review unknown", 2},
		"check: done":                       {checkedStep, []scriptedResponse{hangs, of(200)}, "done done", 1},
		"check: not done":                   {checkedStep, []scriptedResponse{hangs, of(404), ok}, "done done", 2},
		"check: not conclusive": {checkedStep, []scriptedResponse{hangs, of(401)}, "needs_review unknown",
			1},
		"check: another destination": {checkedStep, []scriptedResponse{hangs, of(302)}, "needs_review unknown",
			1},
		"check of a step that is not repeated: done": {checkOnlyStep, []scriptedResponse{hangs, of(200)}, "done done",
			1},
		"check of a step that is not repeated: not done": {checkOnlyStep, []scriptedResponse{hangs, of(404), ok},
			"needs_review unknown", 1},
		"check: done, with status 5xx": {easyStep, []scriptedResponse{hangs, of(503)}, "needs_review unknown", 1},
		"check: done, with status 401": {easyStep, []scriptedResponse{hangs, of(401)}, "needs_review unknown", 1},
		"check: done, with status 404": {easyStep, []scriptedResponse{hangs, of(410)}, "needs_review unknown", 1},
		"check: done, with half a response": {easyStep,
			[]scriptedResponse{hangs, {status: 200, body: `{}`, header: map[string]string{"Content-Length": "10"}}},
			"needs_review unknown", 1},
		"check: done, with the second response": {easyStep, []scriptedResponse{hangs, of(503), of(302), of(200)},
			"done done", 1},
		"no response, repeated under its key": {keyedStep, []scriptedResponse{hangs, of(500), ok}, "done done", 3},
	}
	rows := map[string]row{}
	for name, c := range tests {
		rows[name] = row{c.step, c.responses}
	}
	for name, got := range executeRows(t, rows) {
		posts := strings.Count(strings.Join(got.calls, ", "), "POST")
		if want := tests[name]; got.states != want.states || posts != want.posts {
			t.Errorf("%s: is %s, sent %d times; want %s, %d times: %v", name, got.states, posts, want.states,
				want.posts, got.calls)
		}
	}
}

// The reason quotes the response to a check. A yes with status 404 does not count. After a no, a
// step that must not be repeated is not sent again.
func TestReadCheck_reasonQuotesTheResponse(t *testing.T) {
	t.Parallel()
	lost := []scriptedResponse{{status: 500}, {status: 404}}
	rows := map[string]row{"the response says that it was executed, but only a 2xx counts": {
		strings.Replace(checkedStep, "== 200", "== 404", 1), lost}, "the destination did not know the step": {
		checkOnlyStep, lost}}
	for reason, got := range executeRows(t, rows) {
		if !strings.HasPrefix(got.states, "needs_review") || !strings.Contains(got.reason, reason) {
			t.Errorf("%s: %s, want %s", got.states, got.reason, reason)
		}
	}
}

// If no connection can be established, the step failed and was not executed.
func TestPerform_noConnection_stepFailed(t *testing.T) {
	t.Parallel()
	b := setup(t, neverRepeatedStep)
	proxy := testkit.Proxy(t, strings.TrimPrefix(b.sink.URL, "http://"))
	proxy.Cut()
	b.destinations[0].URL = "https://" + proxy.Addr // it ends during the TLS handshake
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT s.state FROM effects e JOIN effect_steps s USING (effect)
		WHERE e.state IN ('failed', 'needs_review') AND e.attempts > 1`, "failed")
	stop()
}

// The destination's credential is not stored, however a response repeats it.
func TestPerform_secretsInResponse_areMasked(t *testing.T) {
	t.Parallel()
	const key = `pass"word/of+mail`
	b := setup(t, strings.Replace(keyedStep, "id: id", "id: id, echo: echo", 1))
	b.destinations[0].Secrets = []string{key, `pass\"word/of+mail`}
	b.useDestination(t, scriptedResponse{status: 500, body: strings.Repeat("x", 490) + key},
		scriptedResponse{status: 200, body: `{"id": 1, "echo": "pass\"word/of+mail"}`})
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "done", 1)
	if stored := b.db.QueryStrings(t, `SELECT (SELECT string_agg(e::text, '') FROM effects e) ||
		(SELECT string_agg(s::text, '') FROM effect_steps s)`)[0]; strings.Contains(stored, "word/of") ||
		!strings.Contains(stored, "***") {
		t.Error(stored)
	}
}

// The check runs only after the delay that follows an attempt. If the end of the attempt is unknown
// or in the future, the delay counts from now. The stored error of the attempt stays.
func TestNextCall_checkDelay_isKept(t *testing.T) {
	t.Parallel()
	const waits = "failed unknown 503 busy t"
	for name, c := range map[string]struct{ ended, state string }{
		"long ago":      {"clock_now() - interval '2 h'", "done done 200 t"},
		"a moment ago":  {"clock_now()", waits},
		"unknown":       {"NULL", waits},
		"in the future": {"clock_now() + interval '30 d'", waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, strings.Replace(checkedStep, "300ms", "1h", 1))
			other := b.useDestination(t, scriptedResponse{status: 200})
			b.makeUnknown(t, "2 h")
			b.db.Exec(t, `UPDATE effect_steps SET resolved_by = 'check', status = 503, error = 'busy',
				reserved_at = clock_now() - interval '2 h', ended_at = `+c.ended)
			b.run(t, "a", b.pool)
			const is = `SELECT concat_ws(' ', e.state, s.state, s.status, nullif(s.error, ''),
				s.ended_at <= clock_now()) FROM effects e JOIN effect_steps s USING (effect)
				WHERE e.state = 'done' OR e.due BETWEEN clock_now() + interval '45 min'
					AND clock_now() + interval '61 min' AND e.reason LIKE '%check.delay%'`
			b.waitForRow(t, is, c.state)
			if n := len(other.received()); (n == 1) != (c.state != waits) {
				t.Errorf("%d checks", n)
			}
			if c.state == waits {
				b.db.Exec(t, `UPDATE effect_steps SET ended_at = ended_at - interval '1 h'`)
				b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
				b.waitForRow(t, is, "done done 200 t")
			}
		})
	}
}

// The attempt of a process that died ended with its lease. Neither the current timeout nor the time
// of the reclaim matters.
func TestReclaim_attemptEndsWithItsLease(t *testing.T) {
	t.Parallel()
	for until, state := range map[string]string{"25 min": "done done t", "1 s": "failed unknown t"} {
		t.Run(until, func(t *testing.T) {
			t.Parallel()
			b := setup(t, strings.Replace(checkedStep, "300ms", "20m", 1))
			other := b.useDestination(t, scriptedResponse{status: 200})
			b.makeUnknown(t, "30 min")
			b.db.Exec(t, `UPDATE effect_steps SET state = 'reserved', resolved_by = 'check', reserved_at = clock_now() -
				interval '30 min', ended_at = NULL`)
			b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, lease_owner = 'dead',
				lease_until = clock_now() - $1::interval`, until)
			b.run(t, "a", b.pool)
			b.waitForRow(t, `SELECT concat_ws(' ', e.state, s.state, s.ended_at IS NOT NULL) FROM effects e
				JOIN effect_steps s USING (effect)
				WHERE e.state = 'done' OR e.due > clock_now() + interval '15 min'
					AND s.ended_at BETWEEN s.reserved_at + interval '29 min' AND s.reserved_at + interval '30 min'`,
				state)
			if n := len(other.received()); (n == 1) != (state == "done done t") {
				t.Errorf("%d checks", n)
			}
		})
	}
}

// A lost response is checked even if the check's delay exceeds the age limit, or if the attempts
// are used up. If the check does not confirm it, the effect needs review.
func TestRetry_lostResponse_isCheckedAfterTheLimits(t *testing.T) {
	t.Parallel()
	lost := func(then int) []scriptedResponse { return []scriptedResponse{{status: 500}, {status: then}} }
	tests := map[string]struct {
		retry     string
		responses []scriptedResponse
		states    string
	}{
		"check later, done":                         {"age: 1s", lost(200), "done done"},
		"check after the last attempt, done":        {"attempts: 1", lost(200), "done done"},
		"check later, not done":                     {"age: 1s", lost(404), "needs_review failed"},
		"check after the last attempt, not done":    {"attempts: 1", lost(404), "needs_review failed"},
		"check later, no response":                  {"age: 1s", lost(503), "needs_review unknown"},
		"check after the last attempt, no response": {"attempts: 1", lost(503), "needs_review unknown"},
	}
	rows := map[string]row{}
	for name, c := range tests {
		rows[name] = row{`[{name: mail, to: sink, path: "/mail", check: {path: "/did", done: answer.status == 200, ` +
			`delay: 1500ms}, retry: {first_wait: 10ms, max_wait: 20ms, ` + c.retry + `}}]`, c.responses}
	}
	for name, got := range executeRows(t, rows) {
		if calls := strings.Join(got.calls, ", "); got.states != tests[name].states || calls != "POST /mail, GET /did" {
			t.Errorf("%s: is %s, want %s; calls %s", name, got.states, tests[name].states, calls)
		}
	}
}

// heldRequest is a request that waits for its response.
type heldRequest struct {
	path, body string
	response   chan string
}

// holdRequests makes the destination pass on each request and respond as it is told.
func (b *fixture) holdRequests(t *testing.T) chan heldRequest {
	t.Helper()
	requests := make(chan heldRequest, 100)
	b.destinations[0].URL = serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		a := heldRequest{r.URL.Path, string(body), make(chan string)}
		requests <- a
		select {
		case text := <-a.response:
			if text == "" {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
			}
			fmt.Fprint(w, text)
		case <-r.Context().Done():
		}
	})
	return requests
}

// waitForLock waits until a session waits for a lock.
func (b *fixture) waitForLock(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := b.db.QueryStrings(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`)[0]; n == "0" {
			return fmt.Errorf("no session waits: %v", b.states(t))
		}
		return nil
	})
}

const slowSteps = `
      - {name: customer, to: sink, path: "/customers", json: {ref: "{{ object.id }}"}, capture: {id: id}, ` +
	`timeout: 60s, retry: {first_wait: 10ms, max_wait: 50ms}}
      - {name: invoice, to: sink, path: "/invoices", json: {customer: "{{ steps.customer.id }}"}, timeout: 60s, ` +
	`retry: {first_wait: 10ms, max_wait: 50ms}}`

// A response that arrives after the same process has started another attempt does not end that
// attempt.
func TestRecord_lateResponse_leavesNewerAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, slowSteps)
	requests := b.holdRequests(t)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	first := <-requests
	b.db.Exec(t, `UPDATE effects SET lease_until = clock_now() - interval '1 s'`)
	second := <-requests
	hold := testkit.OpenTx(t, b.db.Pool, `SELECT FROM effects FOR UPDATE`)
	first.response <- `{"id": "first"}`
	b.waitForLock(t) // the first response is recorded as early as possible
	second.response <- ""
	must(t, hold.Commit(t.Context()))
	third := <-requests
	if third.path != "/customers" {
		t.Fatalf("%s %s", third.path, third.body)
	}
	third.response <- `{"id": "third"}`
	last := <-requests
	last.response <- `{}`
	if got := b.waitIdle(t); got["done"] != 1 || last.body != `{"customer":"third"}` {
		t.Errorf("%v %s", got, last.body)
	}
	b.wantValues(t, `SELECT concat_ws(' ', step, state, captured->>'id') FROM effect_steps ORDER BY position`,
		"customer done third", "invoice done")
}

// If an effect is redacted while its response waits to be recorded, nothing of the response is
// stored.
func TestRecord_redactedMeanwhile_storesNoResponse(t *testing.T) {
	t.Parallel()
	b := setup(t, slowSteps)
	requests := b.holdRequests(t)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	first := <-requests
	redacts := testkit.OpenTx(t, b.db.Pool, `UPDATE effects SET template_data = NULL, reason = ''`)
	testkit.ExecSQL(t, redacts, `UPDATE effect_steps SET request = NULL, captured = '{}', error = ''`)
	first.response <- `{"id": "ada@example.org"}`
	b.waitForLock(t)
	must(t, redacts.Commit(t.Context()))
	b.waitIdle(t)
	b.wantValues(t, `SELECT concat_ws(' ', step, state, captured, nullif(error, '')) FROM effect_steps
		ORDER BY position`, "customer done {}")
}
