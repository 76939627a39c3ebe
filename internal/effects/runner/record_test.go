package runner_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// patient are settings under which nothing is given up within a test.
var patient = runner.Settings{PollEvery: 50 * time.Millisecond, Margin: patience, LapseEvery: 50 * time.Millisecond, Within: patience, StopWithin: time.Second}

// What came of one effect that the database does not take is left to a person, at once; those that were recorded with it are recorded.
func TestWhatCannotBeRecordedIsLeftToAPerson(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, capture: {id: id}, timeout: 60s}`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.db.Exec(t, `ALTER TABLE effect_steps ADD CHECK (captured->>'id' IS DISTINCT FROM '2')`)
	b.plan(t, 1, 4)
	b.launch(t, runner.Options{Settings: patient})
	calls := []asked{<-requests, <-requests, <-requests, <-requests}
	hold, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for n, c := range calls {
		c.answer <- fmt.Sprintf(`{"id": "%d"}`, n)
	}
	b.waits(t)
	must(t, hold.Commit(t.Context()))
	if got := b.settled(t); got["done"] != 3 || got["review"] != 1 {
		t.Fatal(got)
	}
	got := b.db.Rows(t, `SELECT concat_ws(' ', s.state, s.captured, e.reason) FROM effects e JOIN effect_steps s USING (effect) WHERE e.state = 'review'`)[0]
	if !strings.HasPrefix(got, "unknown {} step mail: what came of it cannot be recorded: ") || !strings.HasSuffix(got, "say what happened with `postern effects resolve`") {
		t.Error(got)
	}
	if n := len(requests); n != 0 {
		t.Errorf("%d calls more", n)
	}
}

// spoken is what a runner logs.
type spoken struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *spoken) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *spoken) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// A commit that came through, and of which nothing was heard, is recorded: who tries again says no more than is known.
func TestACommitOfWhichNothingWasHeard(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", timeout: 60s}]`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 1)
	proxy := testkit.Proxy(t, b.db.URL)
	_, _, said := b.logged(t, runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"), Settings: patient})
	call := <-requests
	b.db.Exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	hold, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	if _, err := hold.Exec(t.Context(), `SELECT pg_advisory_xact_lock(8)`); err != nil {
		t.Fatal(err)
	}
	call.answer <- `{}`
	b.waits(t)
	proxy.StallAnswers()
	must(t, hold.Commit(t.Context()))
	b.becomes(t, `SELECT state FROM effects`, "done")
	proxy.Cut()
	proxy.Restore()
	testkit.Eventually(t, patience, func() error {
		if text := said.String(); !strings.Contains(text, "recorded by a try before, whose commit was not confirmed, or they were taken by others") {
			return errors.New(text)
		}
		return nil
	})
}

// A rule that allows fewer attempts than there were has a person see to it, who is told so.
func TestFewerAttemptsThanThereWere(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {attempts: 3}}]`)
	b.plan(t, 1, 1)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 10`)
	b.run(t, "a", b.pool)
	if got, v := b.settled(t), b.show(t); got["review"] != 1 || v.Reason != "step mail: after 10 attempts, of which its rule allows 3 (retry.attempts)" {
		t.Errorf("%v: %s", got, v.Reason)
	}
}

// looks is how often something must be so, one look after the other.
const looks = 20

// While what came of calls waits to be recorded further calls are made, but not without bound: what is in hand is in doubt if the process dies.
func TestWhatIsInHandIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: tell, to: sink, path: "/tell", json: {ref: "{{ object.id }}"}, timeout: 60s}]`)
	b.reach[0].Concurrency = 2
	hold, err := b.db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = hold.Rollback(context.WithoutCancel(t.Context())) }() // where it is not over by then
	b.sink.Next = func() func(*http.Request) sink.Fault {
		first := sync.OnceFunc(func() {
			if _, err := hold.Exec(t.Context(), `SELECT FROM effects WHERE state = 'running' FOR UPDATE`); err != nil {
				t.Error(err)
			}
		})
		return func(*http.Request) sink.Fault { first(); return sink.Fine }
	}()
	b.plan(t, 1, 20)
	patient := quick
	patient.Margin = time.Minute // so long it tries to record
	b.launch(t, runner.Options{Settings: patient})
	so := 0
	testkit.Eventually(t, patience, func() error {
		n := len(b.sink.Calls())
		if n > 6 {
			t.Fatalf("%d effects are in hand", n)
		}
		if n < 6 {
			return fmt.Errorf("%d calls beside what waits to be recorded", n)
		}
		if so++; so < looks {
			return fmt.Errorf("looked %d times", so)
		}
		return nil
	})
	must(t, hold.Commit(t.Context()))
	if got := b.settled(t); got["done"] != 20 || len(b.sink.Calls()) != 20 {
		t.Errorf("%v, %d calls", got, len(b.sink.Calls()))
	}
}

// A call that is under way when there are other rules comes to its end, however long it takes.
func TestAReloadCutsNoCall(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true, timeout: 60s}`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 1)
	s := patient
	s.StopWithin = time.Millisecond
	r, _ := b.launch(t, runner.Options{Settings: s})
	first := <-requests
	r.Replace(b.rules, b.reach)
	b.plan(t, 2, 1)
	second := <-requests // by the new ones, when those before take nothing any more
	second.answer <- `{}`
	select {
	case first.answer <- `{}`:
	case <-time.After(patience):
		t.Fatal("the call was cut")
	}
	if diff := cmp.Diff(map[string]int{"done": 2}, b.settled(t)); diff != "" {
		t.Error(diff)
	}
}

// Effects that end without a call do not wait for each other.
func TestWhatNeedsNoCallIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail/{{ old.to }}", json: {ref: "{{ object.id }}"}}`)
	b.plan(t, 1, 100)
	s := patient
	s.PollEvery = time.Hour
	b.launch(t, runner.Options{Settings: s})
	if diff := cmp.Diff(map[string]int{"review": 100}, b.settled(t)); diff != "" {
		t.Error(diff)
	}
}

// However often rules are read again, also without a destination for a while, no more calls are under way to it than it takes at once.
func TestReloadsDoNotAddUp(t *testing.T) {
	t.Parallel()
	for name, out := range map[string]bool{"stays": false, "out and in": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, `
      - {name: mail, to: sink, path: "/mail", timeout: 60s}`)
			var underWay, most atomic.Int32
			came, release := make(chan struct{}, 100), make(chan struct{}, 100)
			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				n := underWay.Add(1)
				defer underWay.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				came <- struct{}{}
				<-release
			}))
			t.Cleanup(server.Close)
			b.reach[0].URL, b.reach[0].Concurrency = server.URL, 2
			const all = 20
			b.plan(t, 1, all)
			r, _ := b.launch(t, runner.Options{Settings: patient})
			<-came
			<-came
			for range all - 2 {
				if out {
					r.Replace(b.rules, nil)
				}
				r.Replace(b.rules, b.reach)
				for range 20 { // time enough for those of now to take something
					b.states(t)
				}
				release <- struct{}{}
				<-came
			}
			release <- struct{}{}
			release <- struct{}{}
			if diff := cmp.Diff(map[string]int{"done": all}, b.settled(t)); diff != "" || most.Load() != 2 {
				t.Errorf("%d calls at once; %s", most.Load(), diff)
			}
		})
	}
}

// A value that no mail can be made of makes its own effect wait for a person, and no other one.
func TestANameThatIsNoText(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	mail := b.rules.Named("follow").Steps[0].Do.Mail
	mail.Cc = nil
	var err error
	if mail.To[0], err = rules.CompileAddress("{{ new.to }}", rules.Scope{Change: true, Steps: map[string][]string{}}); err != nil {
		t.Fatal(err)
	}
	b.about(t, 1, `{"to": "=?utf-8?b?`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 2, `{"to": "=?utf-8?b?QYCA`+strings.Repeat("gICA", 20)+`?= <jo@example.com>"}`)
	b.about(t, 3, `{"to": "jo@example.com"}`)
	b.run(t, "a", b.pool)
	if diff := cmp.Diff(map[string]int{"review": 2, "done": 1}, b.settled(t)); diff != "" || len(mails.Taken()) != 1 {
		t.Errorf("%d taken; %s", len(mails.Taken()), diff)
	}
	if v := b.show(t); !strings.Contains(v.Reason, "mail.to") || !strings.Contains(v.Reason, "no valid UTF-8") {
		t.Error(v.Reason)
	}
}

// An effect that panics, be it before its call or with it, waits for a person, and the process and its other effects go on.
func TestAPanicIsOneEffects(t *testing.T) {
	t.Parallel()
	t.Run("before", func(t *testing.T) {
		t.Parallel()
		b, mails := post(t, "")
		b.plan(t, 1, panicking)
		b.rules.Named("follow").Steps[0].Do.Mail.Subject = nil
		b.panics(t)
		if len(mails.Taken()) != 0 || len(b.show(t).Steps) != 0 {
			t.Errorf("%+v", b.show(t))
		}
	})
	t.Run("with a call", func(t *testing.T) {
		t.Parallel()
		b := attended(t, `[{name: send, to: sink, path: "/mail", once: true, timeout: 10ms, check: {path: "/did", done: answer.status == 200, settles: 10ms}}]`)
		b.plan(t, 1, panicking)
		b.faulty("/mail", slices.Repeat([]sink.Fault{sink.FailsFirst}, panicking)...)
		b.rules.Named("follow").Steps[0].Check.Done = nil
		b.panics(t)
		if s := b.show(t).Steps[0]; s.State != effects.Unknown {
			t.Errorf("%+v", s)
		}
	})
}

// panicking is how many effects panic: more than may be under way at once.
const panicking = 3

// panics has all effects panic, each for itself.
func (b *bundle) panics(t *testing.T) {
	t.Helper()
	for i := range b.reach {
		b.reach[i].Concurrency = 1
	}
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != panicking || !strings.Contains(b.show(t).Reason, "panic") {
		t.Fatal(got, b.show(t).Reason)
	}
}

// What waited for its turn longer than its retries may take, as while nobody ran, has all its tries: their age counts from the first. After that a person sees to it, also where the other side has no time.
func TestAgeCountsFromTheFirstAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 50ms, longest: 50ms, attempts: 1000}}]`)
			b.to(t, scriptedAnswer{status: status})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h'`)
			stop := b.run(t, "a", b.pool)
			testkit.Eventually(t, patience, func() error {
				if v := b.show(t); v.State == "review" || len(v.Steps) == 0 || v.Steps[0].Attempts < 3 {
					return fmt.Errorf("%+v", v)
				}
				return nil
			})
			b.db.Exec(t, `UPDATE effects SET tried_since = tried_since - interval '25 h'`)
			b.becomes(t, `SELECT state || ' ' || (reason LIKE 'step mail: after 25h0m%: status %') FROM effects`, "review true")
			stop()

			b.to(t, scriptedAnswer{status: status}, scriptedAnswer{status: http.StatusOK})
			must(t, b.retry(t))
			b.db.Exec(t, `UPDATE effects SET due = due - interval '25 h', updated_at = updated_at - interval '25 h'`)
			b.run(t, "b", b.pool)
			if got := b.settled(t); got["done"] != 1 {
				t.Errorf("%v: %s", got, b.show(t).Reason)
			}
		})
	}
}

// Nor does the age of one step count for the next.
func TestAgeIsOfAStep(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.to(t, scriptedAnswer{status: http.StatusInternalServerError}, scriptedAnswer{status: http.StatusOK, body: `{"id": 1}`}, scriptedAnswer{status: http.StatusInternalServerError}, scriptedAnswer{status: http.StatusOK})
	b.rules.Named("follow").Steps[0].Retry.First = time.Hour
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT state FROM effects`, "failed")
	b.db.Exec(t, `UPDATE effects SET due = clock_now(), tried_since = tried_since - interval '25 h'`)
	if got := b.settled(t); got["done"] != 1 {
		t.Errorf("%v: %s", got, b.show(t).Reason)
	}
}

// What a stop kept from being sent was not tried: it is no person's, and its age has not begun.
func TestAStopIsNoAttempt(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail"}]`)
	var calls atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	t.Cleanup(other.Close)
	b.reach[0].URL, b.reach[0].Rate, b.reach[0].Concurrency, b.reach[0].Longest = other.URL, 1, 5, 30*time.Second
	b.plan(t, 1, 20)
	b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h', tried_since = CASE WHEN effect <= 2 THEN clock_now() - interval '25 h' END`)
	s := patient
	s.StopWithin = 10 * time.Millisecond
	_, stop := b.launch(t, runner.Options{Settings: s})
	testkit.Eventually(t, patience, func() error {
		if calls.Load() == 0 {
			return errors.New("nothing is sent")
		}
		return nil
	})
	stop()
	unsent := b.db.Rows(t, `SELECT DISTINCT concat_ws(' ', e.state, e.attempts, s.state, CASE WHEN effect <= 2 THEN tried_since < planned_at + interval '1 h' ELSE tried_since IS NULL END, left(e.reason, 9))
		FROM effects e JOIN effect_steps s USING (effect) WHERE e.state <> 'done'`)
	if diff := cmp.Diff([]string{"failed 0 failed t not sent:"}, unsent); diff != "" {
		t.Error(diff, strings.Join(b.db.Rows(t, `SELECT concat_ws(' ', effect, state, reason) FROM effects`), "\n"))
	}
}
