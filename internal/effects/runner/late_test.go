package runner_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	first.answer <- `{"id": "first"}`
	b.waits(t) // the first answer is recorded as soon as it may
	second.answer <- ""
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{`UPDATE effects SET facts = NULL, reason = ''`, `UPDATE effect_steps SET request = NULL, captured = '{}', error = ''`} {
		if _, err := redacts.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	first.answer <- `{"id": "ada@example.org"}`
	b.waits(t)
	if err := redacts.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.settled(t)
	if diff := cmp.Diff([]string{"customer done {}"}, b.db.Rows(t, `SELECT concat_ws(' ', step, state, captured, nullif(error, '')) FROM effect_steps ORDER BY place`)); diff != "" {
		t.Error(diff)
	}
}
