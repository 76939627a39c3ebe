package runner_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// said runs until nothing is to be done any more without a person, and gives what was warned of, if that is right.
func (b *bundle) said(t *testing.T, settings runner.Settings, right func(warnings []string) bool) (warnings []string) {
	t.Helper()
	_, stop, said := b.logged(t, runner.Options{Settings: settings})
	b.settled(t)
	stop() // what came of calls is logged before it ends
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
			b.to(t, c.answer)
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
	other := b.to(t, statuses([]int{500, 500, 500, 200})...)
	b.plan(t, 1, 1)
	b.said(t, patient, func(w []string) bool {
		return len(w) == 1 && strings.Contains(w[0], "nobody knows whether steps of effects were done") && strings.Contains(w[0], "effects=1 first=[1] rules=[follow]")
	})
	if calls := other.asked(); len(calls) != 4 {
		t.Error(calls)
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
	_, stop, said := b.logged(t, runner.Options{Settings: patient})
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
	stop() // what is counted is said before it ends
	for line := range strings.Lines(said.String()) {
		if strings.Contains(line, "effects need a person") && !strings.Contains(line, "effects=1 first=[1] ") {
			t.Error(line)
		}
	}
}

// Effects of a destination that was renamed go where their rule says; those whose rule is not there either say what they wait for, and go on when it is.
func TestEffectsOfARenamedDestinationAreHandedOver(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET destination = 'before'`)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone' WHERE effect = 3`)
	b.db.Exec(t, `UPDATE effects SET destination = 'other', state = 'failed' WHERE effect = 2`)
	b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		want := []string{"1 done sink", "2 done sink", "3 planned before destination before is not configured, nor a rule that has another for it; it waits for either"}
		if diff := cmp.Diff(want, b.db.Rows(t, `SELECT concat_ws(' ', effect, state, destination, nullif(reason, '')) FROM effects ORDER BY effect`)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
	if attempts := b.db.Rows(t, `SELECT attempts::text FROM effects WHERE effect = 3 AND due > clock_now()`); len(attempts) != 1 || attempts[0] != "0" {
		t.Errorf("attempts %q of what waits", attempts)
	}
	b.db.Exec(t, `UPDATE effects SET rule = 'follow', due = clock_now() WHERE effect = 3`)
	if got := b.settled(t); got["done"] != 3 {
		t.Error(got)
	}
}

// Effects whose rule was renamed or removed are told: in the log, once for each rule and again after a reload, by the metric that tells what is behind, and by what is safe to do; they go on when the rule is there.
func TestEffectsWhoseRuleIsGoneAreTold(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone', planned_at = planned_at - interval '10 days'`)
	reg, settings := prometheus.NewRegistry(), quick
	settings.MeasureEvery = 20 * time.Millisecond
	metrics, err := runner.NewMetrics(reg)
	must(t, err)
	began := time.Now()
	r, _, said := b.logged(t, runner.Options{Settings: settings, Metrics: metrics})
	behind := func(least, most float64) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if age := value(t, reg, "postern_effects_due_seconds", "sink"); !(age >= least && age <= most) {
				return fmt.Errorf("behind for %v s, want %v to %v", age, least, most)
			}
			return nil
		})
	}
	claimed := func(times int) {
		t.Helper()
		b.becomes(t, fmt.Sprintf(`SELECT bool_and(claims >= %d AND state = 'planned' AND due > clock_now())::text FROM effects`, times), "true")
	}
	warnings := func() int { return strings.Count(said.String(), "rule=gone") }
	claimed(1)
	behind(863_000, 866_000)
	for _, want := range []string{"level=WARN", "postern effects list --rule gone --state planned", "postern effects reject", "first="} {
		if text := said.String(); !strings.Contains(text, want) {
			t.Errorf("the log does not say %q: %s", want, text)
		}
	}
	if next := b.show(t).Next; !strings.Contains(next, "its rule is not configured; it waits for it") || !strings.Contains(next, "postern effects reject 1") {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	claimed(2)
	if n := warnings(); n > 1+int(time.Since(began)/time.Minute) {
		t.Errorf("%d warnings: %s", n, said)
	}
	b.toldAnew(t, r, said, warnings)
	b.db.Exec(t, `UPDATE effects SET rule = 'follow', due = clock_now()`)
	if got := b.settled(t); got["done"] != 3 {
		t.Error(got)
	}
	behind(0, 0)
}

// toldAnew reloads the configuration, and waits for the warning that comes then, sooner than it would be said by itself.
func (b *bundle) toldAnew(t *testing.T, r *runner.Runner, said *spoken, warnings func() int) {
	t.Helper()
	before := warnings()
	r.Replace(b.rules, b.reach)
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	testkit.Eventually(t, patience/2, func() error {
		if warnings() <= before {
			return fmt.Errorf("no warning after a reload: %s", said)
		}
		return nil
	})
}

// Effects whose destination is not configured are in the log once a minute, with how many were looked at, and at once after a reload that leaves them so.
func TestEffectsWhoseDestinationIsGoneAreToldOnceAMinute(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone', destination = 'before'`)
	began := time.Now()
	r, _, said := b.logged(t, runner.Options{})
	const line = "effects wait whose destination is not configured: configure it, or name another in their rule"
	warnings := func() int { return strings.Count(said.String(), line) }
	for times := 1; times <= 5; times++ {
		b.becomes(t, fmt.Sprintf(`SELECT bool_and(claims >= %d AND state = 'planned' AND due > clock_now())::text FROM effects`, times), "true")
		b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	}
	if n := warnings(); n < 1 || n > 1+int(time.Since(began)/time.Minute) || !strings.Contains(said.String(), `destination=before looked_at=3 first="[1 2 3]" rules=[gone]`) {
		t.Errorf("%d warnings: %s", n, said)
	}
	b.toldAnew(t, r, said, warnings)
}

// value is a series of one or no label.
func value(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != name || len(m.GetLabel()) != len(labels) {
				continue
			}
			fits := true
			for i, l := range m.GetLabel() {
				fits = fits && l.GetValue() == labels[i]
			}
			if fits {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return math.Inf(-1) // there is no such series
}

// What effects come to is counted, and what is left of them is read from the database; what that does not answer nobody knows.
func TestMetricsOfEffects(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true, timeout: 60s, retry: {first: 10ms, longest: 50ms}}`) // a call that is slow, with the machine, is in no doubt
	b.faulty("/mail", sink.Refuses, sink.ActsDrops)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET state = 'waiting', due = NULL, planned_at = now() - interval '1 hour' WHERE effect = 3`)
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, due, planned_at, updated_at)
		VALUES ('other', 1, 'other', 1, '', 'invoice', '9', 9, 0, 'failed', 'away', now() - interval '1 hour', now(), now())`)
	away := b.reach[0]
	away.Name, away.URL = "away", "http://127.0.0.1:1"
	reg := prometheus.NewRegistry()
	metrics, err := runner.NewMetrics(reg)
	must(t, err)
	if n := value(t, reg, "postern_effects", "review"); !math.IsNaN(n) {
		t.Errorf("before the first look there are %v", n)
	}
	proxy := testkit.Proxy(t, b.db.URL)
	settings := patient
	settings.MeasureEvery = 20 * time.Millisecond
	r, _ := b.launch(t, runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"), Settings: settings, Metrics: metrics})
	eventually := func(want float64, name string, labels ...string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := value(t, reg, name, labels...); got != want && !(math.IsNaN(want) && math.IsNaN(got)) {
				return fmt.Errorf("%s %v: %v, want %v", name, labels, got, want)
			}
			return nil
		})
	}
	eventually(1, "postern_effects", "review")
	eventually(1, "postern_effects", "waiting")
	eventually(0, "postern_effects", "failed")
	eventually(1, "postern_effects", "planned") // that of a rule that is not configured waits for it
	eventually(1, "postern_effect_steps_unknown")
	eventually(0, "postern_effects_due_seconds", "sink")
	if age := value(t, reg, "postern_effects_oldest_seconds", "waiting"); age < 3600 || age > 7200 {
		t.Errorf("the oldest that waits was planned %v s ago", age)
	}
	for result, want := range map[string]float64{"done": 1, "failed": 1, "review": 1, "unknown": 0} {
		eventually(want, "postern_effect_attempts_total", "sink", result)
	}
	if n := value(t, reg, "postern_effects_due_seconds", "away"); !math.IsInf(n, -1) {
		t.Errorf("a destination that nobody has configured: %v", n)
	}
	r.Replace(b.rules, append(b.reach[:1:1], away))
	eventually(0, "postern_effect_attempts_total", "away", "done")
	testkit.Eventually(t, patience, func() error {
		if age := value(t, reg, "postern_effects_due_seconds", "away"); math.IsInf(age, -1) || math.IsNaN(age) {
			return fmt.Errorf("due for %v s", age)
		}
		return nil
	})
	// What is tried again, and of no rule that there is, is in doubt since what was first tried.
	b.db.Exec(t, `UPDATE effect_steps SET known_since = now() - interval '2 hours' WHERE state = 'unknown'`)
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = now() + interval '1 hour', reason = '' WHERE state = 'review'`)
	eventually(2, "postern_effects", "planned")
	testkit.Eventually(t, patience, func() error {
		if n, age := value(t, reg, "postern_effect_steps_unknown"), value(t, reg, "postern_effect_steps_unknown_seconds"); n != 1 || age < 7200 {
			return fmt.Errorf("%v, since %v s", n, age)
		}
		return nil
	})
	proxy.Cut()
	eventually(math.NaN(), "postern_effects", "waiting")
	eventually(math.NaN(), "postern_effects_due_seconds", "sink")
	eventually(math.NaN(), "postern_effect_steps_unknown_seconds")
	proxy.Restore()
	eventually(1, "postern_effects", "waiting")
}
