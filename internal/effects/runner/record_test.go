package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

// patient are settings under which nothing is given up within a test.
var patient = runner.Settings{PollEvery: 50 * time.Millisecond, Margin: patience, LapseEvery: 50 * time.Millisecond, Within: patience, StopWithin: time.Second}

// start is run with settings, and with a runner that can be given other rules.
func (b *bundle) start(t *testing.T, s runner.Settings) (r *runner.Runner, stop func()) {
	t.Helper()
	r = runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: s, Logger: slog.New(slog.DiscardHandler)})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// What came of one effect that the database does not take is left to a person, at once; those that were recorded with it are recorded.
func TestWhatCannotBeRecordedIsLeftToAPerson(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, capture: {id: id}, timeout: 60s}`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.db.Exec(t, `ALTER TABLE effect_steps ADD CHECK (captured->>'id' IS DISTINCT FROM '2')`)
	b.plan(t, 1, 4)
	b.start(t, patient)
	calls := []asked{<-requests, <-requests, <-requests, <-requests}
	hold, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	for n, c := range calls {
		c.answer <- fmt.Sprintf(`{"id": "%d"}`, n)
	}
	b.waits(t)
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
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
	proxy, said := testkit.Proxy(t, b.db.URL), &spoken{}
	r := runner.New(runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"), ID: "a", Settings: patient, Logger: slog.New(slog.NewTextHandler(said, nil))})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	call := <-requests
	b.db.Exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(8); RETURN NULL; END';
		CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()`)
	hold, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Exec(t.Context(), `SELECT pg_advisory_xact_lock(8)`); err != nil {
		t.Fatal(err)
	}
	call.answer <- `{}`
	b.waits(t)
	proxy.StallAnswers()
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
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
