package runner_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// to sends what the rule wants to another side that answers as it is told.
func (b *bundle) to(t *testing.T, answers ...scriptedAnswer) *scripted {
	t.Helper()
	other := &scripted{answers: answers}
	server := httptest.NewServer(other)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	b.reach[0].URL = server.URL
	return other
}

// doubted leaves step mail of effect 1 in doubt, since an attempt so long ago.
func (b *bundle) doubted(t *testing.T, ago string) {
	t.Helper()
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at, ended_at, known_since)
		VALUES (1, 'mail', 0, 'unknown', 'sink', '', 2, clock_now() - interval '1 h', clock_now(), clock_now() - $1::interval)`, ago)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 2`)
}

// A step in doubt is sent again as long as the other side knows its key; after that a person says what happened.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	const again = "done by itself"
	for name, c := range map[string]struct {
		ago   string
		set   func(*bundle)
		state string
	}{
		"known":                      {"23 h", func(*bundle) {}, again},
		"forgotten":                  {"24 h", func(*bundle) {}, "review unknown person"},
		"kept for longer":            {"30 h", func(b *bundle) { b.reach[0].KeysKept = 48 * time.Hour }, again},
		"a method that may be again": {"30 h", func(b *bundle) { put(b, "") }, again},
		"a method with a key":        {"30 h", func(b *bundle) { put(b, "Idempotency-Key") }, "review unknown person"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail"}]`)
			c.set(b)
			other := b.to(t, scriptedAnswer{status: 200})
			b.doubted(t, c.ago)
			b.run(t, "a", b.pool)
			b.settled(t)
			if c.state == again {
				if calls := len(other.asked()); calls != 1 || b.show(t).State != effects.Done {
					t.Errorf("%d calls: %+v", calls, b.show(t))
				}
				return
			}
			if got := b.db.Rows(t, `SELECT concat_ws(' ', e.state, s.state, s.doubt) FROM effects e JOIN effect_steps s USING (effect)`)[0]; got != c.state || len(other.asked()) != 0 {
				t.Fatalf("%s, %d calls", got, len(other.asked()))
			}
			if v := b.show(t); !strings.Contains(v.Reason, "keys_kept") || !strings.Contains(v.Next, "postern effects resolve 1 --step mail") {
				t.Errorf("%s; %s", v.Reason, v.Next)
			}
			refused(t, b.retry(t), "say what happened")
			if err := b.resolve(t, effects.Word{Step: "mail"}); err != nil {
				t.Fatal(err)
			}
			if b.settled(t); len(other.asked()) != 1 || b.show(t).State != effects.Done {
				t.Errorf("%d calls after a person said that it was not done", len(other.asked()))
			}
		})
	}
}

// put makes the step of the rule a PUT, with its key in a header or without one.
func put(b *bundle, header string) {
	do := &b.rules.Named("follow").Steps[0].Do
	do.Method, do.KeyHeader = http.MethodPut, header
}

// A doubt is as old as the first attempt that may have been done, however often it is sent again; what was not done begins anew.
func TestADoubtIsAsOldAsItsFirstAttempt(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 10ms, longest: 20ms, attempts: 1000}}]`)
	b.to(t, scriptedAnswer{status: 500})
	b.plan(t, 1, 1)
	stop := b.run(t, "a", b.pool)
	const aged = `SELECT concat_ws(' ', state, known_since < reserved_at) FROM effect_steps WHERE attempts > 1 AND state <> 'reserved'`
	b.becomes(t, aged, "unknown t")
	b.db.Exec(t, `UPDATE effect_steps SET known_since = known_since - interval '25 h'`)
	if got := b.settled(t); got["review"] != 1 {
		t.Error(got)
	}
	stop()

	b.db.Exec(t, `UPDATE effect_steps SET state = 'failed', attempts = 1, known_since = clock_now() - interval '25 h'`)
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = clock_now(), attempts = 0`)
	b.run(t, "b", b.pool)
	b.becomes(t, `SELECT concat_ws(' ', state, known_since > clock_now() - interval '1 h') FROM effect_steps WHERE attempts > 1 AND state <> 'reserved'`, "unknown t")
}

// A step in doubt that was begun before the ledger kept since when is as old as its effect, unless it was tried once.
func TestADoubtOfBeforeItsAgeWasKept(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int]string{1: "done", 15: "review"} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 10ms, longest: 20ms, age: 200h}}]`)
			other := b.to(t, scriptedAnswer{status: 500}, scriptedAnswer{status: 200})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = $1, planned_at = clock_now() - interval '5 d'`, attempts)
			b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at, ended_at)
				VALUES (1, 'mail', 0, 'unknown', 'sink', '', $1, clock_now() - interval '10 min', clock_now())`, attempts)
			b.run(t, "a", b.pool)
			if got := b.settled(t); got[want] != 1 || want == "review" && len(other.asked()) != 0 {
				t.Errorf("%v after %d calls: %s", got, len(other.asked()), b.show(t).Reason)
			}
		})
	}
}

// becomes waits until a query has one row, which says so.
func (b *bundle) becomes(t *testing.T, query, want string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if got := b.db.Rows(t, query); len(got) != 1 || got[0] != want {
			return fmt.Errorf("is %q, want %q: %v", got, want, b.states(t))
		}
		return nil
	})
}

// Whoever waited for a person has all tries once the person has said something: the age of retries counts from there.
func TestAgeCountsFromAPersonsWord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path, is string
		say      func(*testing.T, *bundle) error
	}{
		"approve": {"/customers", `UPDATE effects SET state = 'waiting', due = NULL`, func(t *testing.T, b *bundle) error { return b.approve(t, 1) }},
		"retry":   {"/customers", `UPDATE effects SET state = 'review', due = NULL`, func(t *testing.T, b *bundle) error { return b.retry(t) }},
		"resolve": {"/invoices", `WITH s AS (INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) VALUES (1, 'customer', 0, 'unknown', 'sink', '', 1, clock_now()))
			UPDATE effects SET state = 'review', due = NULL`, func(t *testing.T, b *bundle) error {
			return b.resolve(t, effects.Word{Step: "customer", Done: true, Captured: []byte(`{"id": 1}`)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := attended(t, twoSteps)
			b.faulty(c.path, sink.FailsFirst, sink.FailsFirst)
			b.plan(t, 1, 1)
			b.db.Exec(t, c.is)
			b.db.Exec(t, `UPDATE effects SET planned_at = planned_at - interval '30 d'`)
			b.run(t, "a", b.pool)
			if err := c.say(t, b); err != nil {
				t.Fatal(err)
			}
			if got := b.settled(t); got["done"] != 1 {
				t.Errorf("%v: %s", got, b.show(t).Reason)
			}
		})
	}
}

// What a person has tried again is asked for no earlier than it would be by itself: before that has settled, the attempt may act still.
func TestAPersonsRetryWaitsBeforeItAsks(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail", once: true, check: {path: "/did", done: answer.status == 200, settles: 2s}, retry: {first: 10ms, longest: 20ms}}]`)
	asked := make(chan time.Time, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		asked <- time.Now()
	}))
	t.Cleanup(server.Close)
	b.reach[0].URL = server.URL
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		if s := b.show(t).State; s != effects.Failed && s != effects.Done {
			return errors.New(string(s))
		}
		return nil
	})
	if err := b.retry(t); err != nil {
		t.Fatal(err)
	}
	at := <-asked
	b.settled(t)
	if v := b.show(t); v.State != effects.Done || at.Sub(v.Steps[0].ReservedAt.Time) < 2*time.Second {
		t.Errorf("asked %s after the attempt began: %+v", at.Sub(v.Steps[0].ReservedAt.Time), v)
	}
}
