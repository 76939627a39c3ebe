package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

// said runs until nothing is to be done any more without a person, and gives what was warned of, if that is right.
func (b *bundle) said(t *testing.T, settings runner.Settings, right func(warnings []string) bool) (warnings []string) {
	t.Helper()
	said := &spoken{}
	r := runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: settings, Logger: slog.New(slog.NewTextHandler(said, nil))})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	b.settled(t)
	cancel() // what came of calls is logged before it ends
	if err := <-done; err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "level=WARN") {
			warnings = append(warnings, line)
		}
	}
	if !right(warnings) {
		t.Errorf("warnings %q", warnings)
	}
	return warnings
}

// What a person must see to is in the log, with the rule, the destination, ids and the command, and nothing of an answer; also what was never sent.
func TestReviewIsLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps  string
		answer scriptedAnswer
	}{
		"refused":    {onceStep, scriptedAnswer{status: http.StatusUnprocessableEntity, body: "the secret of an answer"}},
		"no answer":  {onceStep, scriptedAnswer{hangs: true}},
		"never sent": {`[{name: mail, to: sink, path: "/mail", json: {to: "{{ new.none.at }}"}}]`, scriptedAnswer{status: http.StatusOK}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.steps)
			server := httptest.NewServer(&scripted{answers: []scriptedAnswer{c.answer}})
			t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
			b.reach[0].URL = server.URL
			b.plan(t, 1, 8)
			n := 0
			for _, w := range b.said(t, patient, func(w []string) bool { return len(w) > 0 && len(w) <= 8 }) {
				for _, want := range []string{"effects need a person", "postern effects list --state review", "destination=sink", "rules=[follow]", "first="} {
					if !strings.Contains(w, want) {
						t.Errorf("%q is not said: %s", want, w)
					}
				}
				if strings.Contains(w, "secret") {
					t.Error(w)
				}
				n += count(t, w, "effects")
			}
			if n != 8 {
				t.Errorf("told of %d effects", n)
			}
		})
	}
}

// A step of which nobody knows whether it was done is in the log when that begins, and not at each try that leaves it so.
func TestDoubtIsLoggedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 10ms, longest: 20ms, attempts: 9}}]`)
	other := &scripted{answers: []scriptedAnswer{{status: 500}, {status: 500}, {status: 500}, {status: 200}}}
	server := httptest.NewServer(other)
	t.Cleanup(server.Close)
	b.reach[0].URL = server.URL
	b.plan(t, 1, 1)
	b.said(t, patient, func(w []string) bool {
		return len(w) == 1 && strings.Contains(w[0], "nobody knows whether steps of effects were done") && strings.Contains(w[0], "effects=1 first=[1] rules=[follow]")
	})
	if calls := other.asked(); len(calls) != 4 {
		t.Error(calls)
	}
}

// However many effects need a person, in however many transactions, the log says it once a minute, and all of them are counted.
func TestAFloodIsALineAMinute(t *testing.T) {
	t.Parallel()
	b := setup(t, onceStep)
	b.to(t, scriptedAnswer{status: http.StatusUnauthorized})
	b.reach[0].Concurrency = 1 // so that few are recorded at once
	b.plan(t, 1, 40)
	began := time.Now()
	told := 0
	for _, w := range b.said(t, patient, func(w []string) bool { return len(w) >= 2 && len(w) <= 2+int(time.Since(began)/time.Minute) }) {
		told += count(t, w, "effects")
	}
	if told != 40 {
		t.Errorf("told of %d effects", told)
	}
}

// count is what a line of the log counts.
func count(t *testing.T, line, name string) (n int) {
	t.Helper()
	_, text, ok := strings.Cut(line, " "+name+"=")
	if _, err := fmt.Sscan(text, &n); err != nil || !ok {
		t.Errorf("%v: %s", err, line)
	}
	return n
}

// Steps that came to be in doubt as their process ended are named, with their rules and the destination, and no others: not those that were in doubt before, nor what was not begun.
func TestDoubtsOfACrashAreNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail"}]`)
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, taken_by = 'z', taken_until = clock_now() - interval '1 second', claims = 1, attempts = 1, tried_since = clock_now()`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at, known_since)
		SELECT n, 'mail', 0, 'reserved', 'sink', '', 2, clock_now() - interval '2 min', clock_now() - CASE WHEN n = 2 THEN interval '1 h' ELSE interval '2 min' END FROM generate_series(1, 3) n`)
	b.db.Exec(t, `UPDATE effect_steps SET known_since = reserved_at WHERE effect <> 2`)
	b.said(t, patient, func(w []string) bool {
		return len(w) == 2 && strings.Contains(w[0], "effects were given back whose process ended") && strings.Contains(w[0], `effects=4 first="[1 2 3 4]"`) &&
			strings.Contains(w[1], "nobody knows whether steps of effects were done") && strings.Contains(w[1], `destination=sink effects=2 first="[1 3]" rules=[follow]`)
	})
}

// What another attempt has taken meanwhile, the one before says nothing of.
func TestOnlyWhatIsRecordedIsNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", timeout: 60s, capture: {id: id}}]`)
	var requests chan asked
	b.reach[0].URL, requests = answering(t)
	b.plan(t, 1, 2)
	said := &spoken{}
	r := runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: patient, Logger: slog.New(slog.NewTextHandler(said, nil))})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	calls := []asked{<-requests, <-requests}
	b.db.Exec(t, `UPDATE effects SET claims = claims + 1 WHERE effect = 2`)
	for _, c := range calls {
		c.answer <- `{}`
	}
	testkit.Eventually(t, patience, func() error {
		if text := said.String(); !strings.Contains(text, "taken by others before their answers came") || !strings.Contains(text, "effects need a person") {
			return errors.New(text)
		}
		return nil
	})
	cancel() // what is counted is said before it ends
	if err := <-done; err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "effects need a person") && !strings.Contains(line, "effects=1 first=[1] ") {
			t.Error(line)
		}
	}
}
