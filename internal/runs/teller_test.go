package runs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// feed takes what is published, or refuses it while it is away.
type feed struct {
	mu   sync.Mutex
	away bool
	got  []string
}

func (f *feed) publish(_ context.Context, ended []runs.Run) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]error, len(ended))
	for i, r := range ended {
		if f.away {
			out[i] = errors.New("away")
			continue
		}
		f.got = append(f.got, fmt.Sprintf("%d %s", r.Run, r.Status))
	}
	return out
}

func (f *feed) goes(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

func (b *testBundle) teller(t *testing.T, f *feed) (*runs.Teller, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := runs.NewMetrics(reg, []string{job})
	must(t, err)
	return runs.NewTeller(runs.Teller{Pool: b.processor, Publish: f.publish, Metrics: metrics, Logger: slog.New(slog.DiscardHandler), Every: time.Hour, Again: time.Minute}), reg
}

// sample is the value of a series; NaN where there is none.
func sample(t *testing.T, reg *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := reg.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && cmp.Equal(have, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return math.NaN()
}

// Each run that has ended is told of once, by one of the tellers, however it ended; one that could not be published is told later, and counted once.
func TestEndsAreTold(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	f := &feed{}
	teller, reg := c.teller(t, f)
	other, otherReg := c.teller(t, f)
	for range 30 {
		c.ask(t, "")
	}
	for i := range 20 {
		h := c.take(t, "me", time.Hour)
		end, detail := runs.Done, ""
		if i%4 == 0 {
			end, detail = runs.Failed, "why"
		}
		must(t, h.End(t.Context(), end, detail))
	}
	must(t, runs.Change(t.Context(), c.operator, 30, runs.Cancelled))
	var all sync.WaitGroup
	for _, one := range []*runs.Teller{teller, other, teller, other} {
		all.Go(func() {
			if _, err := one.Tell(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(f.got) != 21 {
		t.Errorf("told %v", f.got)
	}
	for status, want := range map[runs.Status]float64{runs.Done: 15, runs.Failed: 5, runs.Cancelled: 1} {
		if got := sample(t, reg, "postern_runs_total", job, string(status)) + sample(t, otherReg, "postern_runs_total", job, string(status)); got != want {
			t.Errorf("%s: counted %g, want %g", status, got, want)
		}
	}
	f.goes(true)
	must(t, runs.Change(t.Context(), c.operator, 29, runs.Cancelled))
	if n, err := teller.Tell(t.Context()); err == nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	f.goes(false)
	if n, err := other.Tell(t.Context()); err != nil || n != 0 {
		t.Errorf("told again at once: %d, %v", n, err)
	}
	c.set(t, instant(t, "2026-05-01T12:02:00Z"))
	if n, err := other.Tell(t.Context()); err != nil || n != 1 || f.got[len(f.got)-1] != "29 cancelled" {
		t.Errorf("%d, %v, %v", n, err, f.got)
	}
	if got := sample(t, reg, "postern_runs_total", job, "cancelled") + sample(t, otherReg, "postern_runs_total", job, "cancelled"); got != 2 {
		t.Errorf("counted %g", got)
	}
}

// A teller in its loop looks when it is hurried.
func TestTellerIsHurried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := &feed{}
	teller, _ := b.teller(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- teller.Run(ctx) }()
	run := b.ask(t, "")
	must(t, runs.Change(t.Context(), b.operator, run, runs.Cancelled))
	testkit.Eventually(t, time.Minute, func() error {
		teller.Hurry()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.got) != 1 {
			return fmt.Errorf("told %v", f.got)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What is open, what waits, what was skipped and when it last succeeded is measured.
func TestRunsAreMeasured(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	reg := prometheus.NewRegistry()
	m, err := runs.NewMetrics(reg, []string{job})
	must(t, err)
	p := c.planner(schedule("s", "0 * * * *"), schedule("never", "0 0 1 1 *"))
	tick(t, p)
	for range 3 {
		c.ask(t, "")
	}
	c.take(t, "me", 24*time.Hour)
	c.at(t, p, "2026-05-01T13:00:00Z")
	c.at(t, p, "2026-05-01T14:00:30Z")
	must(t, m.Read(t.Context(), c.processor))
	for _, want := range []struct {
		name   string
		labels []string
		value  float64
	}{
		{"postern_runs_open", []string{job, "waiting"}, 3}, {"postern_runs_open", []string{job, "running"}, 1}, {"postern_runs_open", []string{job, "paused"}, 0},
		{"postern_runs_waiting_seconds", nil, 7230}, {"postern_schedule_skipped_total", []string{"s"}, 1}, {"postern_schedule_skipped_total", []string{"never"}, 0},
		{"postern_schedule_last_success_timestamp_seconds", []string{"s"}, 0},
	} {
		if got := sample(t, reg, want.name, want.labels...); got != want.value {
			t.Errorf("%s %v: %g, want %g", want.name, want.labels, got, want.value)
		}
	}
	c.finish(t)
	must(t, m.Read(t.Context(), c.processor))
	if got, want := sample(t, reg, "postern_schedule_last_success_timestamp_seconds", "s"), instant(t, "2026-05-01T14:00:30Z").Unix(); got != float64(want) {
		t.Errorf("succeeded at %g, want %d", got, want)
	}
	if got := sample(t, reg, "postern_runs_open", job, "waiting"); got != 0 {
		t.Errorf("%g wait", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Read(ctx, c.processor); err == nil || !math.IsNaN(sample(t, reg, "postern_runs_open", job, "waiting")) || !math.IsNaN(sample(t, reg, "postern_runs_waiting_seconds")) {
		t.Errorf("without a database: %v", err)
	}
	// What only grows stays, or nobody would see what it grew by meanwhile.
	success, skipped := sample(t, reg, "postern_schedule_last_success_timestamp_seconds", "s"), sample(t, reg, "postern_schedule_skipped_total", "s")
	if !math.IsNaN(success) || skipped != 1 {
		t.Errorf("without a database: succeeded at %g, skipped %g", success, skipped)
	}
	if err := m.Read(t.Context(), c.processor); err != nil || math.IsNaN(sample(t, reg, "postern_schedule_last_success_timestamp_seconds", "s")) {
		t.Errorf("with it again: %v", err)
	}
}

// History is forgotten by age, but not what is open, still has outcomes, or was not told; schedules keep what they know.
func TestForget(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	p := c.planner(schedule("s", "0 * * * *"))
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	for range 1200 {
		c.ask(t, "old")
	}
	c.finish(t)
	f := &feed{}
	teller, _ := c.teller(t, f)
	for n := 1; n > 0; {
		var err error
		if n, err = teller.Tell(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
VALUES (1, 7, 1, 0, '', '', '', 'ignored', '', 1, clock_now(), 1)`)
	c.set(t, instant(t, "2026-05-20T12:00:00Z"))
	kept := []string{"7"}
	open := c.ask(t, "open")
	young := c.ask(t, "young")
	must(t, runs.Change(t.Context(), c.operator, young, runs.Cancelled))
	kept = append(kept, fmt.Sprint(open), fmt.Sprint(young))
	keeper, before := c.db.Role(t, "maintenance"), instant(t, "2026-05-10T12:00:00Z")
	if n, err := runs.CountOld(t.Context(), c.operator, before); err != nil || n != 1200 {
		t.Errorf("would forget %d, %v", n, err)
	}
	if n, err := runs.Forget(t.Context(), keeper, before); err != nil || n != 1200 {
		t.Errorf("forgot %d, %v", n, err)
	}
	if n, err := runs.Forget(t.Context(), keeper, before); err != nil || n != 0 {
		t.Errorf("forgot %d more, %v", n, err)
	}
	c.set(t, instant(t, "2026-06-20T12:00:00Z")) // the cancelled run was never told
	if n, err := runs.Forget(t.Context(), keeper, instant(t, "2026-06-10T12:00:00Z")); err != nil || n != 0 {
		t.Errorf("forgot %d more, %v", n, err)
	}
	page, err := runs.List(t.Context(), c.operator, runs.Filter{}, "", 100)
	must(t, err)
	var left []string
	for i := range page.Items {
		left = append([]string{fmt.Sprint(page.Items[i].Run)}, left...)
	}
	if strings.Join(left, " ") != strings.Join(kept, " ") {
		t.Errorf("left %v, want %v", left, kept)
	}
	var checkpoints int
	if err := c.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM checkpoints WHERE run > 0`).Scan(&checkpoints); err != nil || checkpoints != 1 {
		t.Errorf("%d checkpoints, %v", checkpoints, err)
	}
	if s := c.scheduled(t, "s"); s.Last != 0 || s.SucceededAt.IsZero() {
		t.Errorf("%+v", s)
	}
}
