package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// value is a series of one or no label.
func value(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if n := value(t, reg, "postern_effects", "review"); !math.IsNaN(n) {
		t.Errorf("before the first look there are %v", n)
	}
	proxy := testkit.Proxy(t, b.db.URL)
	settings := patient
	settings.MeasureEvery = 20 * time.Millisecond
	r := runner.New(runner.Options{Pool: (&testkit.DB{URL: proxy.URL}).Role(t, "processor"), ID: "a", Settings: settings, Logger: slog.New(slog.DiscardHandler), Metrics: metrics})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
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
