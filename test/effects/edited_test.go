package effects_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

// editedRule is a rule of one step whose first response is lost, and which is edited after that.
type editedRule struct {
	name string
	// was and is are the kinds of recovery before and after the edit. moves means that the edit
	// changes the destination.
	was, is kind
	moves   bool
	// acts is when the destination executes the first request: at once, late (after all automatic
	// attempts), or never. forgets means that it has forgotten all keys by then.
	acts    string
	forgets bool
}

// allEdits returns every possible edit of a rule, except those that check.delay excludes: a request
// that the destination executes after a check has found nothing.
func allEdits() (all []*editedRule) {
	kinds := []kind{keyed, checked, checkedOnce, once}
	for n := range 4 * 4 * 2 * 3 * 2 {
		e := editedRule{name: fmt.Sprint("rule_", n), was: kinds[n%4], is: kinds[n/4%4], moves: n/16%2 == 1,
			acts: []string{"at once", "late", "never"}[n/32%3], forgets: n/96 == 1}
		if (e.was != checked || e.acts != "late") && (e.was == keyed || !e.forgets) {
			all = append(all, &e)
		}
	}
	return all
}

// text returns the configuration of the rule before or after the edit. Before it the intervals are
// so long that only the first attempt happens. A check of another request than the edited one finds
// nothing.
func (e *editedRule) text(after bool) string {
	to, kind, wait, asks := "here", e.was, "1h", "/did?key={{ step_key }}"
	if after {
		kind, wait = e.is, "1ms"
	}
	if after && e.moves {
		to = "there"
	}
	if after && e.was == keyed {
		asks = "/never"
	}
	text := fmt.Sprintf("  %s:\n    source: sim\n    type: thing\n    key: \"%s:{{ object.id }}\"\n    steps: "+
		"[{name: step, to: %s, path: /%s, retry: {first_wait: %s, max_wait: %s}", e.name, e.name, to, e.name, wait,
		wait)
	switch kind {
	case checked:
		text += fmt.Sprintf(`, check: {path: %q, done: answer.status == 200, delay: %s}`, asks, wait)
	case checkedOnce:
		text += fmt.Sprintf(`, at_most_once: true, check: {path: %q, done: answer.status == 200, delay: %s}`, asks,
			wait)
	case once:
		text += ", at_most_once: true, operator_resolves: true"
	case keyed:
	}
	return text + "}]\n"
}

// destination is a server that honours the idempotency keys of keyed rules, and no others.
type destination struct {
	url   string
	rules map[string]*editedRule
	mu    sync.Mutex
	// losesResponses means that no response tells what was done.
	losesResponses bool
	// did counts by key how often a step was done. late has the keys that are done later.
	did  map[string]int
	late []string
}

func newDestination(t *testing.T, all []*editedRule) *destination {
	t.Helper()
	s := &destination{rules: map[string]*editedRule{}, did: map[string]int{}, losesResponses: true}
	for _, e := range all {
		s.rules["/"+e.name] = e
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP executes a request, or responds to a check.
func (s *destination) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, e := r.Header.Get("Idempotency-Key"), s.rules[r.URL.Path]
	switch {
	case r.Method == http.MethodGet && s.did[r.URL.Query().Get("key")] > 0:
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
	case s.losesResponses:
		if e.acts == "at once" {
			s.did[key]++
		} else if e.acts == "late" {
			s.late = append(s.late, key)
		}
		w.WriteHeader(http.StatusConflict) // an inconclusive response
	case e.was != keyed || e.forgets || s.did[key] == 0 && !slices.Contains(s.late, key):
		s.did[key]++
	}
}

// stopLosing makes all later responses arrive.
func (s *destination) stopLosing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losesResponses = false
}

// doLate executes the late requests.
func (s *destination) doLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.late {
		s.did[key]++
	}
	s.late = nil
}

func (s *destination) count(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.did[key]
}

// editWorld has rules that are edited while the outcome of each one's step is unknown.
type editWorld struct {
	*world
	all         []*editedRule
	here, there *destination
}

// rulesOf returns the rules before or after the edits.
func (w *editWorld) rulesOf(after bool) (*effects.Rules, []config.ResolvedDestination) {
	w.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "database: {url: postgres://x/y}\nsources:\n  sim: {provider: stripe, secrets: [{name: a, "+
		"value: whsec_secret_of_the_tests}]}\ndestinations:\n")
	for name, s := range map[string]*destination{"here": w.here, "there": w.there} {
		fmt.Fprintf(&text, "  %s: {url: %q, allow: [127.0.0.1], timeout: 10s}\n", name, s.url)
	}
	text.WriteString("effects:\n")
	for _, e := range w.all {
		text.WriteString(e.text(after))
	}
	cfg, err := config.Parse([]byte(text.String()), func(string) string { return "" })
	must(w.t, err)
	return effects.NewRules(cfg.Rules()), cfg.ResolveDestinations()
}

// executeUntilNone executes effects by these rules until none is in one of the states.
func (w *editWorld) executeUntilNone(rules *effects.Rules, destinations []config.ResolvedDestination,
	states ...string) {
	w.t.Helper()
	steady := quick
	// The margin is so long that no attempt loses its lease on a slow machine. Otherwise there
	// would be another unknown outcome.
	steady.LeaseMargin = time.Minute
	r := runner.New(runner.Options{Pool: w.log.Pool, ID: "runner", Settings: steady,
		Logger: slog.New(slog.DiscardHandler)})
	r.Replace(rules, destinations)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}()
	testkit.Eventually(w.t, *patience, func() error {
		if left := w.log.DB.QueryStrings(w.t, `SELECT concat_ws(' ', e.rule, e.state, e.attempts, e.due, e.reason,
			s.state, s.resolved_by, s.error) FROM effects e LEFT JOIN effect_steps s USING (effect)
			WHERE e.state = ANY($1) ORDER BY 1 LIMIT 5`, states); len(left) > 0 {
			return fmt.Errorf("some effects are %v: %q", states, left)
		}
		return nil
	})
}

// resolveAll resolves each step that needs review. The operator has looked at both destinations.
func (w *editWorld) resolveAll() (waited int) {
	w.t.Helper()
	for _, e := range w.ledger() {
		if e.state == "needs_review" {
			waited++
			w.operate(func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
				return effects.Resolve(ctx, tx, e.effect,
					effects.ResolveParams{Step: "step", Done: w.here.count(e.stepKey)+
						w.there.count(e.stepKey) > 0})
			})
		}
	}
	return waited
}

// If a rule is edited while the outcome of its step is unknown, the step is still done once, by one
// of the destinations.
func TestEffects_ruleEditedDuringUnknownOutcome_stepDoneOnce(t *testing.T) {
	t.Parallel()
	all := allEdits()
	w := &editWorld{&world{t: t, log: applied.New(t)}, all, newDestination(t, all), newDestination(t, all)}
	rules, destinations := w.rulesOf(false)
	w.planObject(rules)
	w.executeUntilNone(rules, destinations, "planned", "running")
	w.here.stopLosing()
	w.there.stopLosing()
	for _, e := range w.all {
		if e.forgets {
			w.log.DB.Exec(t, `UPDATE effect_steps SET first_attempt_at = first_attempt_at - interval '25 h'
				WHERE effect = (SELECT effect FROM effects WHERE rule = $1)`, e.name)
		}
	}
	w.log.DB.Exec(t, `UPDATE effect_steps SET ended_at = ended_at - interval '1 s'`)
	w.log.DB.Exec(t, `UPDATE effects SET due = clock_now() WHERE state = 'failed'`)
	rules, destinations = w.rulesOf(true)
	w.executeUntilNone(rules, destinations, "planned", "running", "failed")
	w.here.doLate()
	waited := w.resolveAll()
	w.executeUntilNone(rules, destinations, "planned", "running", "failed", "needs_review")
	for _, e := range w.ledger() {
		if here, there := w.here.count(e.stepKey), w.there.count(e.stepKey); e.state != "done" || here+there != 1 {
			t.Errorf("%+v: the effect is %s, done %d times here, %d there",
				*all[slices.IndexFunc(all, func(of *editedRule) bool { return of.name == e.rule })], e.state, here,
				there)
		}
	}
	if waited == len(all) {
		t.Error("no effect was resolved automatically")
	}
	t.Logf("%d rules, of which an operator resolved %d", len(all), waited)
}
