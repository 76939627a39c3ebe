package runner_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
	said, reg, settings := &spoken{}, prometheus.NewRegistry(), quick
	settings.MeasureEvery = 20 * time.Millisecond
	metrics, err := runner.NewMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r := runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: settings, Logger: slog.New(slog.NewTextHandler(said, nil)), Metrics: metrics})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
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
	said := &spoken{}
	began := time.Now()
	r := runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: quick, Logger: slog.New(slog.NewTextHandler(said, nil))})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
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
