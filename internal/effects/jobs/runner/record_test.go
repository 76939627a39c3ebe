package runner_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// patientSettings never give up within a test.
var patientSettings = runner.Settings{PollEvery: 50 * time.Millisecond, LeaseMargin: patience,
	ReclaimEvery: 50 * time.Millisecond, TxTimeout: patience, StopTimeout: time.Second}

// A result that the database rejects needs review at once. The results of the same batch are
// recorded.
func TestRecord_unstorableResult_needsReview(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, capture: {id: id}, timeout: 60s}`)
	requests := b.holdRequests(t)
	b.db.Exec(t, `ALTER TABLE effect_steps ADD CHECK (captured->>'id' IS DISTINCT FROM '2')`)
	b.plan(t, 1, 4)
	b.launch(t, runner.Options{Settings: patientSettings})
	calls := []heldRequest{<-requests, <-requests, <-requests, <-requests}
	hold := testkit.OpenTx(t, b.db.Pool, `SELECT FROM effects FOR UPDATE`)
	for n, c := range calls {
		c.response <- fmt.Sprintf(`{"id": "%d"}`, n)
	}
	b.waitForLock(t)
	must(t, hold.Commit(t.Context()))
	if got := b.waitIdle(t); got["done"] != 3 || got["needs_review"] != 1 {
		t.Fatal(got)
	}
	got := b.db.QueryStrings(t, `SELECT concat_ws(' ', s.state, s.captured, e.reason) FROM effects e
		JOIN effect_steps s USING (effect) WHERE e.state = 'needs_review'`)[0]
	if !strings.HasPrefix(got, "unknown {} step mail: the result cannot be recorded: ") ||
		!strings.HasSuffix(got, "say what happened with `postern effects resolve`") {
		t.Error(got)
	}
	if n := len(requests); n != 0 {
		t.Errorf("%d more calls", n)
	}
}

// logBuffer holds the log of a runner.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *logBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *logBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// waitFor waits until the log contains texts.
func (s *logBuffer) waitFor(t *testing.T, texts ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		for _, want := range texts {
			if text := s.String(); !strings.Contains(text, want) {
				return fmt.Errorf("%q is not logged: %s", want, text)
			}
		}
		return nil
	})
}

// A commit that succeeded without a confirmation is recorded. The repeated record adds nothing.
func TestRecord_unconfirmedCommit_isKept(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", timeout: 60s}]`)
	requests := b.holdRequests(t)
	b.plan(t, 1, 1)
	proxy := testkit.Proxy(t, b.db.URL)
	_, _, log := b.logged(t, runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"),
		Settings: patientSettings})
	call := <-requests
	b.db.Exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_advisory_xact_lock_shared(8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE
			FUNCTION wait()`)
	hold := testkit.OpenTx(t, b.db.Pool, `SELECT pg_advisory_xact_lock(8)`)
	call.response <- `{}`
	b.waitForLock(t)
	proxy.StallResponses()
	must(t, hold.Commit(t.Context()))
	b.waitForRow(t, `SELECT state FROM effects`, "done")
	proxy.Cut()
	proxy.Restore()
	log.waitFor(t, "recorded by an earlier try, whose commit was not confirmed, or other processes leased them")
}

// If the rule now allows fewer attempts than there were, the effect needs review, with that reason.
func TestNextCall_ruleAllowsFewerAttempts_needsReview(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail", retry: {attempts: 3}}]`)
	b.plan(t, 1, 1)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 10`)
	b.run(t, "a", b.pool)
	if got, v := b.waitIdle(t), b.show(t); got["needs_review"] != 1 ||
		v.Reason != "step mail: after 10 attempts; its rule allows 3 (retry.attempts)" {
		t.Errorf("%v: %s", got, v.Reason)
	}
}

// polls is how often a condition must hold in consecutive polls.
const polls = 20

// While results wait to be recorded, further calls start, but their number is bounded. Effects in
// progress have an unknown outcome if the process dies.
func TestRun_slowRecording_boundsEffectsInProgress(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: tell, to: sink, path: "/tell", json: {ref: "{{ object.id }}"}, timeout: 60s}]`)
	b.destinations[0].Concurrency = 2
	hold, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = hold.Rollback(context.WithoutCancel(t.Context())) }() // if it is not over by then
	b.sink.NextFault = func() func(*http.Request) sink.Fault {
		first := sync.OnceFunc(func() {
			if _, err := hold.Exec(t.Context(), `SELECT FROM effects WHERE state = 'running' FOR UPDATE`); err != nil {
				t.Error(err)
			}
		})
		return func(*http.Request) sink.Fault { first(); return sink.NoFault }
	}()
	b.plan(t, 1, 20)
	settings := quick
	settings.LeaseMargin = time.Minute // for so long it retries the record
	b.launch(t, runner.Options{Settings: settings})
	so := 0
	testkit.Eventually(t, patience, func() error {
		n := len(b.sink.Calls())
		if n > 6 {
			t.Fatalf("%d effects are in progress", n)
		}
		if n < 6 {
			return fmt.Errorf("%d calls besides the results that wait to be recorded", n)
		}
		if so++; so < polls {
			return fmt.Errorf("%d polls", so)
		}
		return nil
	})
	must(t, hold.Commit(t.Context()))
	b.wantIdle(t, "done", 20)
	b.wantCalls(t, 20)
}

// A call in progress during a reload finishes, however long it takes.
func TestReplace_callInProgress_finishes(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, at_most_once: true, `+
		`operator_resolves: true, `+
		`timeout: 60s}`)
	requests := b.holdRequests(t)
	b.plan(t, 1, 1)
	s := patientSettings
	s.StopTimeout = time.Millisecond
	r, _ := b.launch(t, runner.Options{Settings: s})
	first := <-requests
	r.Replace(b.rules, b.destinations)
	b.plan(t, 2, 1)
	second := <-requests // by the new destinations, after the old ones have stopped leasing
	second.response <- `{}`
	select {
	case first.response <- `{}`:
	case <-time.After(patience):
		t.Fatal("the call was cut")
	}
	testkit.Equal(t, "effects by state", map[string]int{"done": 2}, b.waitIdle(t))
}

// Effects that end without a call do not wait for each other.
func TestLeaseDue_effectsWithoutCall_doNotWait(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail/{{ old.to }}", json: {ref: "{{ object.id }}"}}`)
	b.plan(t, 1, 100)
	s := patientSettings
	s.PollEvery = time.Hour
	b.launch(t, runner.Options{Settings: s})
	testkit.Equal(t, "effects by state", map[string]int{"needs_review": 100}, b.waitIdle(t))
}

// Repeated reloads, also without a destination for a while, never exceed its concurrency.
func TestReplace_repeated_keepsTheConcurrencyLimit(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]bool{"stays": false, "out and in": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `
      - {name: mail, to: sink, path: "/mail", timeout: 60s}`)
			var inFlight, most atomic.Int32
			came, release := make(chan struct{}, 100), make(chan struct{}, 100)
			b.destinations[0].Concurrency = 2
			b.destinations[0].URL = serve(t, func(http.ResponseWriter, *http.Request) {
				n := inFlight.Add(1)
				defer inFlight.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				came <- struct{}{}
				<-release
			})
			const all = 20
			b.plan(t, 1, all)
			r, _ := b.launch(t, runner.Options{Settings: patientSettings})
			<-came
			<-came
			for range all - 2 {
				if out {
					r.Replace(b.rules, nil)
				}
				r.Replace(b.rules, b.destinations)
				for range 20 { // enough time for the new destinations to lease an effect
					b.states(t)
				}
				release <- struct{}{}
				<-came
			}
			release <- struct{}{}
			release <- struct{}{}
			if diff := cmp.Diff(map[string]int{"done": all}, b.waitIdle(t)); diff != "" || most.Load() != 2 {
				t.Errorf("%d calls at once; %s", most.Load(), diff)
			}
		})
	}
}

// A value that cannot be part of a mail sends its own effect to review, and no other.
func TestNextCall_unusableName_needsReview(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	mail := b.rules.ByName("follow").Steps[0].Do.Mail
	mail.Cc = nil
	var err error
	if mail.To[0], err = rules.CompileAddress("{{ new.to }}",
		rules.Scope{Change: true, Steps: map[string][]string{}}); err != nil {
		t.Fatal(err)
	}
	b.about(t, 1, `{"to": "=?utf-8?b?`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 2, `{"to": "=?utf-8?b?QYCA`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 3, `{"to": "jo@example.com"}`)
	b.run(t, "a", b.pool)
	if diff := cmp.Diff(map[string]int{"needs_review": 2, "done": 1}, b.waitIdle(t)); diff != "" ||
		len(mails.Accepted()) != 1 {
		t.Errorf("%d accepted; %s", len(mails.Accepted()), diff)
	}
	if v := b.show(t); !strings.Contains(v.Reason, "mail.to") || !strings.Contains(v.Reason, "not valid UTF-8") {
		t.Error(v.Reason)
	}
}

// An effect that causes a panic, before or during its call, needs review. The process and its other
// effects continue.
func TestRun_panic_affectsOneEffect(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		b, mails := post(t, "")
		b.plan(t, 1, panicking)
		b.rules.ByName("follow").Steps[0].Do.Mail.Subject = nil
		b.insertPanicking(t)
		if len(mails.Accepted()) != 0 || len(b.show(t).Steps) != 0 {
			t.Errorf("%+v", b.show(t))
		}
	})
	t.Run("with a call", func(t *testing.T) {
		t.Parallel()
		b := setupWithSource(t, `[{name: send, to: sink, path: "/mail", at_most_once: true, timeout: 10ms, `+
			`check: {path: "/did", done: answer.status == 200, delay: 10ms}}]`)
		b.plan(t, 1, panicking)
		b.failRequests("/mail", slices.Repeat([]sink.Fault{sink.FailsBeforeActing}, panicking)...)
		b.rules.ByName("follow").Steps[0].Check.Done = nil
		b.insertPanicking(t)
		if s := b.show(t).Steps[0]; s.State != effects.Unknown {
			t.Errorf("%+v", s)
		}
	})
}

// panicking is the number of effects that panic, more than the concurrency.
const panicking = 3

// insertPanicking makes each effect panic separately.
func (b *fixture) insertPanicking(t *testing.T) {
	t.Helper()
	for i := range b.destinations {
		b.destinations[i].Concurrency = 1
	}
	b.run(t, "a", b.pool)
	if got := b.waitIdle(t); got["needs_review"] != panicking || !strings.Contains(b.show(t).Reason, "panic") {
		t.Fatal(got, b.show(t).Reason)
	}
}

// An effect that was due for longer than the age limit, for example while no process ran, still
// gets all its attempts, because the age counts from the first. After the limit it needs review,
// also if the destination only requests pauses.
func TestRetry_ageLimit_startsWithFirstAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail", retry: {first_wait: 50ms, max_wait: 50ms, `+
				`attempts: 1000}}]`)
			b.useDestination(t, scriptedResponse{status: status})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h'`)
			stop := b.run(t, "a", b.pool)
			testkit.Eventually(t, patience, func() error {
				if v := b.show(t); v.State == "needs_review" || len(v.Steps) == 0 || v.Steps[0].Attempts < 3 {
					return fmt.Errorf("%+v", v)
				}
				return nil
			})
			b.db.Exec(t, `UPDATE effects SET first_attempt_at = first_attempt_at - interval '25 h'`)
			b.waitForRow(t, `SELECT state || ' ' || (reason LIKE 'step mail: after 25h0m%: status %') FROM effects`,
				"needs_review true")
			stop()

			b.useDestination(t, scriptedResponse{status: status}, scriptedResponse{status: http.StatusOK})
			must(t, b.retry(t))
			b.db.Exec(t, `UPDATE effects SET due = due - interval '25 h', updated_at = updated_at - interval '25 h'`)
			b.run(t, "b", b.pool)
			b.wantIdle(t, "done", 1)
		})
	}
}

// The age of a step does not count for the next step.
func TestRetry_ageLimit_isPerStep(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.useDestination(t, scriptedResponse{status: http.StatusInternalServerError},
		scriptedResponse{status: http.StatusOK, body: `{"id": 1}`},
		scriptedResponse{status: http.StatusInternalServerError}, scriptedResponse{status: http.StatusOK})
	b.rules.ByName("follow").Steps[0].Retry.FirstWait = time.Hour
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT state FROM effects`, "failed")
	b.db.Exec(t, `UPDATE effects SET due = clock_now(), first_attempt_at = first_attempt_at - interval '25 h'`)
	b.wantIdle(t, "done", 1)
}

// A call that a stop prevented is no attempt. The effect needs no review, and its age limit has not
// started.
func TestRun_stop_isNotAnAttempt(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, `[{name: mail, to: sink, path: "/mail"}]`)
	var calls atomic.Int64
	d := &b.destinations[0]
	d.URL = serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	d.Rate, d.Concurrency, d.MaxTimeout = 1, 5, 30*time.Second
	b.plan(t, 1, 20)
	b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h', first_attempt_at = CASE
		WHEN effect <= 2 THEN clock_now() - interval '25 h' END`)
	s := patientSettings
	s.StopTimeout = 10 * time.Millisecond
	_, stop := b.launch(t, runner.Options{Settings: s})
	testkit.Eventually(t, patience, func() error {
		if calls.Load() == 0 {
			return errors.New("nothing is sent")
		}
		return nil
	})
	stop()
	b.wantValues(t, `SELECT DISTINCT concat_ws(' ', e.state, e.attempts, s.state, CASE
		WHEN effect <= 2 THEN e.first_attempt_at < planned_at + interval '1 h'
			ELSE e.first_attempt_at IS NULL END, left(e.reason, 9))
		FROM effects e JOIN effect_steps s USING (effect) WHERE e.state <> 'done'`, "failed 0 failed t not sent:")
}
