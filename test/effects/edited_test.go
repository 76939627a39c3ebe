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
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

// edited is a rule of one step whose first answer is lost, and which is another one after that.
type edited struct {
	name string
	// was and is are how lost answers are cleared up; moves: the step goes to another side by now.
	was, is kind
	moves   bool
	// acts is when the other side does what it was sent first: at once, late (when all that happens
	// by itself has happened), or never. forgets: it knows no key any more by then.
	acts    string
	forgets bool
}

// everyEdit is every way to edit a rule, but what its check.settles rules out: that what is sent
// again for a no is done later than that.
func everyEdit() (all []*edited) {
	kinds := []kind{keyed, checked, asked, once}
	for n := range 4 * 4 * 2 * 3 * 2 {
		e := edited{name: fmt.Sprint("rule_", n), was: kinds[n%4], is: kinds[n/4%4], moves: n/16%2 == 1,
			acts: []string{"at once", "late", "never"}[n/32%3], forgets: n/96 == 1}
		if (e.was != checked || e.acts != "late") && (e.was == keyed || !e.forgets) {
			all = append(all, &e)
		}
	}
	return all
}

// text is the rule as it is written before it is edited, when nothing but the first attempt has
// time to happen, and after. A check of later looks for what is in no request of before.
func (e *edited) text(after bool) string {
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
		"[{name: step, to: %s, path: /%s, retry: {first: %s, longest: %s}", e.name, e.name, to, e.name, wait, wait)
	switch kind {
	case checked:
		text += fmt.Sprintf(`, check: {path: %q, done: answer.status == 200, settles: %s}`, asks, wait)
	case asked:
		text += fmt.Sprintf(`, once: true, check: {path: %q, done: answer.status == 200, settles: %s}`, asks, wait)
	case once:
		text += ", once: true, person_resolves: true"
	case keyed:
	}
	return text + "}]\n"
}

// side is another side, which honours the keys of rules that were repeated under them, and no
// others.
type side struct {
	url   string
	rules map[string]*edited
	mu    sync.Mutex
	// loses: nobody hears of what is done.
	loses bool
	// did is how often each rule's step was done; late are those that are done later.
	did  map[string]int
	late []string
}

func newSide(t *testing.T, all []*edited) *side {
	t.Helper()
	s := &side{rules: map[string]*edited{}, did: map[string]int{}, loses: true}
	for _, e := range all {
		s.rules["/"+e.name] = e
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP does what it is sent, and says what it has done.
func (s *side) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, e := r.Header.Get("Idempotency-Key"), s.rules[r.URL.Path]
	switch {
	case r.Method == http.MethodGet && s.did[r.URL.Query().Get("key")] > 0:
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusNotFound)
	case s.loses:
		if e.acts == "at once" {
			s.did[key]++
		} else if e.acts == "late" {
			s.late = append(s.late, key)
		}
		w.WriteHeader(http.StatusConflict) // which says nothing
	case e.was != keyed || e.forgets || s.did[key] == 0 && !slices.Contains(s.late, key):
		s.did[key]++
	}
}

// heard has what it does heard from now on.
func (s *side) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loses = false
}

// ends does what is late.
func (s *side) ends() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.late {
		s.did[key]++
	}
	s.late = nil
}

func (s *side) times(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.did[key]
}

// editing is a world of rules that are edited while each has a step in doubt.
type editing struct {
	*world
	all         []*edited
	here, there *side
}

// rulesOf are the rules as they are before or after they are edited.
func (w *editing) rulesOf(after bool) (*effects.Rules, []config.ResolvedDestination) {
	w.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "database: {url: postgres://x/y}\nsources:\n  sim: {provider: stripe, secrets: [{name: a, "+
		"value: whsec_secret_of_the_tests}]}\ndestinations:\n")
	for name, s := range map[string]*side{"here": w.here, "there": w.there} {
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

// carried carries out effects by rules until no more of these states are there.
func (w *editing) carried(rules *effects.Rules, reaches []config.ResolvedDestination, states ...string) {
	w.t.Helper()
	steady := quick
	// no attempt is given up here, however slow the machine: that would be another doubt
	steady.LeaseMargin = time.Minute
	r := runner.New(runner.Options{Pool: w.log.Pool, ID: "runner", Settings: steady,
		Logger: slog.New(slog.DiscardHandler)})
	r.Replace(rules, reaches)
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
		var n int
		if err := w.log.DB.Pool.QueryRow(w.t.Context(), `SELECT count(*) FROM effects WHERE state = ANY($1)`,
			states).Scan(&n); err != nil || n > 0 {
			if err != nil {
				return err
			}
			return fmt.Errorf("%d are %v: %q", n, states, w.log.DB.QueryStrings(w.t, `SELECT concat_ws(' ', e.rule,
				e.state,
				e.attempts, e.due, e.reason, s.state, s.doubt, s.error) FROM effects e LEFT
					JOIN effect_steps s USING (effect) WHERE e.state = ANY($1) ORDER BY 1 LIMIT 5`, states))
		}
		return nil
	})
}

// resolved has a person say of each step that waits for one what happened, who has looked at both
// sides.
func (w *editing) resolved() (waited int) {
	w.t.Helper()
	for _, e := range w.ledger() {
		if e.state == "review" {
			waited++
			w.person(func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
				return effects.Resolve(ctx, tx, e.effect,
					effects.ResolveParams{Step: "step", Done: w.here.times(e.stepKey)+
						w.there.times(e.stepKey) > 0})
			})
		}
	}
	return waited
}

// However a rule is edited while nobody knows whether its step was done, the step is done once, by
// whichever side.
func TestEditedRules(t *testing.T) {
	t.Parallel()
	all := everyEdit()
	w := &editing{&world{t: t, log: applied.New(t)}, all, newSide(t, all), newSide(t, all)}
	rules, reaches := w.rulesOf(false)
	err := postgres.InTx(t.Context(), w.log.Pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Plan(ctx, tx, 0,
			rules.Evaluate(&effects.Transition{Source: applied.SourceName, Number: w.log.Source,
				Type: "thing", ID: "obj", New: []byte(`{"id": "obj"}`), Event: effects.Event{ID: 1}}))
		return err
	})
	must(t, err)
	w.carried(rules, reaches, "planned", "running")
	w.here.heard()
	w.there.heard()
	for _, e := range w.all {
		if e.forgets {
			w.log.DB.Exec(t, `UPDATE effect_steps SET known_since = known_since - interval '25 h'
				WHERE effect = (SELECT effect FROM effects WHERE rule = $1)`, e.name)
		}
	}
	w.log.DB.Exec(t, `UPDATE effect_steps SET ended_at = ended_at - interval '1 s'`)
	w.log.DB.Exec(t, `UPDATE effects SET due = clock_now() WHERE state = 'failed'`)
	rules, reaches = w.rulesOf(true)
	w.carried(rules, reaches, "planned", "running", "failed")
	w.here.ends()
	waited := w.resolved()
	w.carried(rules, reaches, "planned", "running", "failed", "review")
	for _, e := range w.ledger() {
		if here, there := w.here.times(e.stepKey), w.there.times(e.stepKey); e.state != "done" || here+there != 1 {
			t.Errorf("%+v: is %s, done %d times here, %d there",
				*all[slices.IndexFunc(all, func(of *edited) bool { return of.name == e.rule })], e.state, here, there)
		}
	}
	if waited == len(all) {
		t.Error("nothing was cleared up by itself")
	}
	t.Logf("%d rules, of %d a person said what happened", len(all), waited)
}
