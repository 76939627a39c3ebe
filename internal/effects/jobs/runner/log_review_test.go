package runner_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// collectWarnings runs until all that remains needs an operator, and returns the warnings if they
// are as expected.
func (b *fixture) collectWarnings(t *testing.T, settings runner.Settings, right func(warnings []string) bool) (
	warnings []string) {
	t.Helper()
	_, stop, log := b.logged(t, runner.Options{Settings: settings})
	b.waitIdle(t)
	stop() // results are logged before it ends
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=WARN") {
			warnings = append(warnings, line)
		}
	}
	if !right(warnings) {
		t.Errorf("warnings %q", warnings)
	}
	return warnings
}

// The log names effects that need review, with rule, destination, ids and the command, and without
// response data. This includes effects that were never sent.
func TestLogNeedsReview_namesEffects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps    string
		response scriptedResponse
	}{
		"rejected": {neverRepeatedStep, scriptedResponse{status: http.StatusUnprocessableEntity,
			body: "the secret of a response"}},
		"no response": {neverRepeatedStep, scriptedResponse{hangs: true}},
		"never sent": {`[{name: mail, to: sink, path: "/mail", json: {to: "{{ new.none.at }}"}}]`,
			scriptedResponse{status: http.StatusOK}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, c.steps)
			b.useDestination(t, c.response)
			b.plan(t, 1, 8)
			n := 0
			for _, w := range b.collectWarnings(t, patientSettings, func(w []string) bool {
				return len(w) > 0 && len(w) <= 8
			}) {
				for _, want := range []string{"effects need review", "postern effects list --state needs_review",
					"destination=sink", "rules=[follow]", "first="} {
					if !strings.Contains(w, want) {
						t.Errorf("%q is not logged: %s", want, w)
					}
				}
				if strings.Contains(w, "secret") {
					t.Error(w)
				}
				n += loggedCount(t, w, "effects")
			}
			if n != 8 {
				t.Errorf("%d effects are logged", n)
			}
		})
	}
}

// A step is logged when its outcome becomes unknown, and not after each retry.
func TestLogNeedsReview_unknownStep_isLoggedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", retry: {first_wait: 10ms, max_wait: 20ms, attempts: 9}}]`)
	other := b.useDestination(t, statuses([]int{500, 500, 500, 200})...)
	b.plan(t, 1, 1)
	b.collectWarnings(t, patientSettings, func(w []string) bool {
		return len(w) == 1 && strings.Contains(w[0], "it is unknown whether steps of effects were executed") &&
			strings.Contains(w[0], "effects=1 first=[1] rules=[follow]")
	})
	other.wantCalls(t, 4)
}

// loggedCount returns the count of a log line.
func loggedCount(t *testing.T, line, name string) (n int) {
	t.Helper()
	_, text, ok := strings.Cut(line, " "+name+"=")
	if _, err := fmt.Sscan(text, &n); err != nil || !ok {
		t.Errorf("%v: %s", err, line)
	}
	return n
}

// After a process died, the log names the steps with a newly unknown outcome, with their rules and
// the destination. It does not name steps that were unknown before, or that had not started.
func TestReclaim_logsNewlyUnknownSteps(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail"}]`)
	b.plan(t, 1, 4)
	b.db.Exec(t, `UPDATE effects SET state = 'running', due = NULL, lease_owner = 'z', lease_epoch = 1, attempts = 1,
		lease_until = clock_now() - interval '1 second', first_attempt_at = clock_now()`)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts,
		reserved_at, first_attempt_at)
		SELECT n, 'mail', 0, 'reserved', 'sink', '', 2, clock_now() - interval '2 min', clock_now() - CASE
			WHEN n = 2 THEN interval '1 h' ELSE interval '2 min' END FROM generate_series(1, 3) n`)
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = reserved_at WHERE effect <> 2`)
	b.collectWarnings(t, patientSettings, func(w []string) bool {
		return len(w) == 2 && strings.Contains(w[0], "the process that executed effects ended") &&
			strings.Contains(w[0], `effects=4 first="[1 2 3 4]"`) &&
			strings.Contains(w[1], "it is unknown whether steps of effects were executed") &&
			strings.Contains(w[1], `destination=sink effects=2 first="[1 3]" rules=[follow]`)
	})
}

// If another attempt has leased an effect, the earlier attempt logs nothing about it.
func TestLogNeedsReview_lostLease_isNotLogged(t *testing.T) {
	t.Parallel()
	b := setup(t, `[{name: mail, to: sink, path: "/mail", timeout: 60s, capture: {id: id}}]`)
	requests := b.holdRequests(t)
	b.plan(t, 1, 2)
	_, stop, log := b.logged(t, runner.Options{Settings: patientSettings})
	calls := []heldRequest{<-requests, <-requests}
	b.db.Exec(t, `UPDATE effects SET lease_epoch = lease_epoch + 1 WHERE effect = 2`)
	for _, c := range calls {
		c.response <- `{}`
	}
	log.waitFor(t, "other processes leased effects before their responses came", "effects need review")
	stop() // suppressed counts are logged before it ends
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "effects need review") && !strings.Contains(line, "effects=1 first=[1] ") {
			t.Error(line)
		}
	}
}

// Effects of a renamed destination move to the destination of their rule. Effects whose rule is
// missing too say what they wait for, and continue when it is configured.
func TestRedirectDetached_renamedDestination_movesEffects(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET destination = 'before'`)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone' WHERE effect = 3`)
	b.db.Exec(t, `UPDATE effects SET destination = 'other', state = 'failed' WHERE effect = 2`)
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT string_agg(concat_ws(' ', effect, state, destination, nullif(reason, '')), ', '
		ORDER BY effect) FROM effects`, "1 done sink, 2 done sink, 3 planned before destination before is not "+
		"configured, and its rule names no configured one; it waits until either changes")
	b.wantValues(t, `SELECT attempts::text FROM effects WHERE effect = 3 AND due > clock_now()`, "0")
	b.db.Exec(t, `UPDATE effects SET rule = 'follow', due = clock_now() WHERE effect = 3`)
	b.wantIdle(t, "done", 3)
}

// Effects whose rule was renamed or removed are shown: in the log, once per rule and again after a
// reload, in the metric of due effects, and in their allowed actions. They continue when the rule
// is configured.
func TestRedirectDetached_missingRule_isLogged(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone', planned_at = planned_at - interval '10 days'`)
	reg, metrics := newMetrics(t)
	settings := quick
	settings.MetricsEvery = 20 * time.Millisecond
	began := time.Now()
	r, _, log := b.logged(t, runner.Options{Settings: settings, Metrics: metrics})
	behind := func(least, most float64) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if age := metricValue(t, reg, "postern_effects_due_seconds", "sink"); !(age >= least && age <= most) {
				return fmt.Errorf("behind for %v s, want %v to %v", age, least, most)
			}
			return nil
		})
	}
	warnings := func() int { return strings.Count(log.String(), "rule=gone") }
	b.waitForLeases(t, 1)
	behind(863_000, 866_000)
	for _, want := range []string{"level=WARN", "postern effects list --rule gone --state planned",
		"postern effects reject", "first="} {
		if text := log.String(); !strings.Contains(text, want) {
			t.Errorf("the log does not contain %q: %s", want, text)
		}
	}
	if next := b.show(t).AllowedActions; !strings.Contains(next, "its rule is not configured; it waits for the rule") ||
		!strings.Contains(next, "postern effects reject 1") {
		t.Error(next)
	}
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	b.waitForLeases(t, 2)
	if n := warnings(); n > 1+int(time.Since(began)/time.Minute) {
		t.Errorf("%d warnings: %s", n, log)
	}
	b.reloadAndWaitForWarning(t, r, log, warnings)
	b.db.Exec(t, `UPDATE effects SET rule = 'follow', due = clock_now()`)
	b.wantIdle(t, "done", 3)
	behind(0, 0)
}

// waitForLeases waits until each effect was leased a number of times and waits again.
func (b *fixture) waitForLeases(t *testing.T, times int) {
	t.Helper()
	b.waitForRow(t, fmt.Sprintf(`SELECT bool_and(lease_epoch >= %d AND state = 'planned' AND due > clock_now())::text
		FROM effects`, times), "true")
}

// reloadAndWaitForWarning reloads the configuration and waits for the warning, which comes earlier
// than the interval.
func (b *fixture) reloadAndWaitForWarning(t *testing.T, r *runner.Runner, log *logBuffer, warnings func() int) {
	t.Helper()
	before := warnings()
	r.Replace(b.rules, b.destinations)
	b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	testkit.Eventually(t, patience/2, func() error {
		if warnings() <= before {
			return fmt.Errorf("no warning after a reload: %s", log)
		}
		return nil
	})
}

// Effects whose destination is not configured are logged once a minute, with the number of checks,
// and at once after a reload.
func TestRedirectDetached_missingDestination_isLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	b := setupWithSource(t, twoSteps)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET rule = 'gone', destination = 'before'`)
	began := time.Now()
	r, _, log := b.logged(t, runner.Options{})
	const line = "effects wait for a destination that is not configured: configure it, or name another in their rule"
	warnings := func() int { return strings.Count(log.String(), line) }
	for times := 1; times <= 5; times++ {
		b.waitForLeases(t, times)
		b.db.Exec(t, `UPDATE effects SET due = clock_now()`)
	}
	if n := warnings(); n < 1 || n > 1+int(time.Since(began)/time.Minute) ||
		!strings.Contains(log.String(), `destination=before checked=3 first="[1 2 3]" rules=[gone]`) {
		t.Errorf("%d warnings: %s", n, log)
	}
	b.reloadAndWaitForWarning(t, r, log, warnings)
}

// newMetrics returns new metrics and their registry.
func newMetrics(t *testing.T) (*prometheus.Registry, *runner.Metrics) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := runner.NewMetrics(reg)
	must(t, err)
	return reg, metrics
}

// metricValue returns the value of a series with at most one label.
func metricValue(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
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
	return math.Inf(-1) // no such series
}

// Results are counted, and open effects are read from the database. If the database does not
// respond, the gauges are NaN.
func TestMetrics_countEffects(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, at_most_once: true, `+
		`operator_resolves: true, `+
		// a slow call on a busy machine has no unknown outcome
		`timeout: 60s, retry: {first_wait: 10ms, max_wait: 50ms}}`)
	b.failRequests("/mail", sink.RateLimits, sink.ActsThenDrops)
	b.plan(t, 1, 3)
	b.db.Exec(t, `UPDATE effects SET state = 'awaiting_approval', due = NULL, planned_at = now() - interval '1 hour'
		WHERE effect = 3`)
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		state, destination, due, planned_at, updated_at)
		VALUES ('other', 1, 'other', 1, '', 'invoice', '9', 9, 0, 'failed', 'away', now() - interval '1 hour', now(),
			now())`)
	away := b.destinations[0]
	away.Name, away.URL = "away", "http://127.0.0.1:1"
	reg, metrics := newMetrics(t)
	if n := metricValue(t, reg, "postern_effects", "needs_review"); !math.IsNaN(n) {
		t.Errorf("before the first reading there are %v", n)
	}
	proxy := testkit.Proxy(t, b.db.URL)
	settings := patientSettings
	settings.MetricsEvery = 20 * time.Millisecond
	r, _ := b.launch(t, runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"), Settings: settings,
		Metrics: metrics})
	eventually := func(want float64, name string, labels ...string) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if got := metricValue(t, reg, name, labels...); got != want && !(math.IsNaN(want) && math.IsNaN(got)) {
				return fmt.Errorf("%s %v: %v, want %v", name, labels, got, want)
			}
			return nil
		})
	}
	eventually(1, "postern_effects", "needs_review")
	eventually(1, "postern_effects", "awaiting_approval")
	eventually(0, "postern_effects", "failed")
	eventually(1, "postern_effects", "planned") // the effect of a missing rule waits for it
	eventually(1, "postern_effect_steps_unknown")
	eventually(0, "postern_effects_due_seconds", "sink")
	if age := metricValue(t, reg, "postern_effects_oldest_seconds", "awaiting_approval"); age < 3600 || age > 7200 {
		t.Errorf("the oldest effect that awaits approval was planned %v s ago", age)
	}
	for result, want := range map[string]float64{"done": 1, "failed": 1, "needs_review": 1, "unknown": 0} {
		eventually(want, "postern_effect_attempts_total", "sink", result)
	}
	if n := metricValue(t, reg, "postern_effects_due_seconds", "away"); !math.IsInf(n, -1) {
		t.Errorf("a destination that is not configured: %v", n)
	}
	r.Replace(b.rules, append(b.destinations[:1:1], away))
	eventually(0, "postern_effect_attempts_total", "away", "done")
	testkit.Eventually(t, patience, func() error {
		if age := metricValue(t, reg, "postern_effects_due_seconds", "away"); math.IsInf(age, -1) || math.IsNaN(age) {
			return fmt.Errorf("due for %v s", age)
		}
		return nil
	})
	// A step that is retried, and a step without a configured rule, have an unknown outcome since
	// their first attempt.
	b.db.Exec(t, `UPDATE effect_steps SET first_attempt_at = now() - interval '2 hours' WHERE state = 'unknown'`)
	b.db.Exec(t, `UPDATE effects SET state = 'planned', due = now() + interval '1 hour', reason = ''
		WHERE state = 'needs_review'`)
	eventually(2, "postern_effects", "planned")
	testkit.Eventually(t, patience, func() error {
		if n, age := metricValue(t, reg, "postern_effect_steps_unknown"),
			metricValue(t, reg, "postern_effect_steps_unknown_seconds"); n != 1 || age < 7200 {
			return fmt.Errorf("%v, since %v s", n, age)
		}
		return nil
	})
	proxy.Cut()
	eventually(math.NaN(), "postern_effects", "awaiting_approval")
	eventually(math.NaN(), "postern_effects_due_seconds", "sink")
	eventually(math.NaN(), "postern_effect_steps_unknown_seconds")
	proxy.Restore()
	eventually(1, "postern_effects", "awaiting_approval")
}
