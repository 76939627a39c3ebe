package plan_test

import (
	"slices"
	"testing"

	"github.com/postern-gateway/postern/bench/plan"
	"github.com/postern-gateway/postern/bench/suite"
)

// verdict is the first one of all bounds about something, by its formula.
func verdict(t *testing.T, s plan.Samples, what, formula string) plan.Verdict {
	t.Helper()
	all := plan.Judge(s, plan.Bounds())
	i := slices.IndexFunc(all, func(v plan.Verdict) bool { return v.What == what && v.Formula == formula })
	if i < 0 {
		t.Fatalf("no bound %q with %q", what, formula)
	}
	return all[i]
}

func TestIngestIsJudged(t *testing.T) {
	t.Parallel()
	const row, what, formula = "closed-64", "ingest, 64 connections", "events/s of postern / events/s of bare"
	for _, c := range []struct {
		name  string
		own   []float64
		want  plan.Status
		aimed bool
	}{
		{"not run", nil, plan.Missing, false},
		{"below", []float64{74, 73, 99}, plan.Fail, false},
		{"at the bound", []float64{75, 75, 1}, plan.Pass, false},
		{"at the aim", []float64{85, 85, 1}, plan.Pass, true},
	} {
		v := verdict(t, append(rates(row, suite.Postern, c.own...), rates(row, suite.Bare, 100, 100, 100)...), what, formula)
		if v.Status != c.want || v.Aimed != c.aimed {
			t.Errorf("%s: %s, aimed %v; want %s, %v", c.name, v.Status, v.Aimed, c.want, c.aimed)
		}
	}
}

func TestAtMostIsJudged(t *testing.T) {
	t.Parallel()
	const what, formula = "CPU per event, all servers, 64 connections", "CPU of postern / CPU of bare"
	for cpu, want := range map[float64]plan.Status{139: plan.Pass, 141: plan.Fail} {
		s := plan.Samples{
			{Row: "closed-64", Target: suite.Postern, CPU: map[string]float64{"gateway": cpu - 20, "postgresql": 15, "nats": 5}},
			{Row: "closed-64", Target: suite.Bare, CPU: map[string]float64{"bare": 60, "postgresql": 40}},
		}
		if v := verdict(t, s, what, formula); v.Status != want {
			t.Errorf("%.0f: %s, want %s", cpu, v.Status, want)
		}
	}
}

func TestLatePublishingIsFoundInAnyRow(t *testing.T) {
	t.Parallel()
	const what, formula = "everything published", "seconds from the load's end to the last event in the stream, the largest of all rounds"
	after := func(row string, seconds float64) suite.Sample {
		return suite.Sample{Row: row, Target: suite.Postern, More: map[string]float64{"published_within_s": seconds}}
	}
	for _, c := range []struct {
		samples plan.Samples
		want    plan.Status
	}{
		{plan.Samples{after("closed-64", 0.1), after("closed-256", 4.9)}, plan.Pass},
		{plan.Samples{after("closed-64", 0.1), after("closed-64", 0.1), after("closed-64", 5.1)}, plan.Fail},
		{plan.Samples{after("closed-64", 0.1), after("closed-256", -1)}, plan.Fail}, // never
	} {
		if v := verdict(t, c.samples, what, formula); v.Status != c.want {
			t.Errorf("%v: %s (%+v), want %s", c.samples, v.Status, v.Figure, c.want)
		}
	}
}

// 15,000 events a second are asked only of a machine on which bare takes as many.
func TestAppliedRateDependsOnTheMachine(t *testing.T) {
	t.Parallel()
	const what, formula = "applying, objects updated ten times on average, where bare reaches 15,000", "events/s applied"
	applied := rates("apply", suite.Postern, 9000)
	for bare, want := range map[float64]plan.Status{14_000: plan.Idle, 15_000: plan.Fail} {
		if v := verdict(t, append(applied, rates("closed-256", suite.Bare, bare)...), what, formula); v.Status != want {
			t.Errorf("bare %.0f: %s, want %s", bare, v.Status, want)
		}
	}
}

func TestSustainedIsAShareOfIngestAlone(t *testing.T) {
	t.Parallel()
	const what, formula = "ingest and applying together", "events/s of postern / events/s of postern in closed-64"
	alone := rates("closed-64", suite.Postern, 9000, 10_000, 11_000)
	for rate, want := range map[float64]plan.Status{3999: plan.Fail, 4000: plan.Pass} {
		if v := verdict(t, append(rates("sustained", suite.Postern, rate), alone...), what, formula); v.Status != want {
			t.Errorf("%.0f: %s, want %s", rate, v.Status, want)
		}
	}
}
