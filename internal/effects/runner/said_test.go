package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects/runner"
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
				var told int
				if _, err := fmt.Sscanf(w[strings.Index(w, " effects=")+1:], "effects=%d", &told); err != nil {
					t.Error(err, w)
				}
				n += told
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
