package runs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// fakeStream records publications, or rejects them while it is unavailable.
type fakeStream struct {
	mu          sync.Mutex
	unavailable bool
	published   []string
}

func (f *fakeStream) publish(_ context.Context, ended []runs.Run) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]error, len(ended))
	for i, r := range ended {
		if f.unavailable {
			out[i] = errors.New("away")
			continue
		}
		f.published = append(f.published, fmt.Sprintf("%d %s", r.ID, r.Status))
	}
	return out
}

func (f *fakeStream) setUnavailable(unavailable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unavailable = unavailable
}

func (b *testBundle) endPublisher(t *testing.T, f *fakeStream) (*runs.EndPublisher, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics, err := runs.NewMetrics(reg, []string{job})
	must(t, err)
	return runs.NewEndPublisher(runs.EndPublisher{Pool: b.processor, Publish: f.publish, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler), Interval: time.Hour, RetryInterval: time.Minute}), reg
}

// sample returns the value of a series, or NaN if it does not exist.
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

// Each ended run is published once by one of the publishers, whatever its status. A failed
// publication is repeated later, and the run is counted once.
func TestEndPublisher_concurrentPublishers_publishEachEndOnce(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	f := &fakeStream{}
	publisher, reg := c.endPublisher(t, f)
	other, otherReg := c.endPublisher(t, f)
	for range 30 {
		c.create(t, "")
	}
	for i := range 20 {
		h := c.acquire(t, "me", time.Hour)
		end, detail := runs.Done, ""
		if i%4 == 0 {
			end, detail = runs.Failed, "why"
		}
		must(t, h.End(t.Context(), end, detail))
	}
	must(t, runs.ChangeStatus(t.Context(), c.operator, 30, runs.Cancelled))
	var all sync.WaitGroup
	for _, one := range []*runs.EndPublisher{publisher, other, publisher, other} {
		all.Go(func() {
			if _, err := one.PublishEnded(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(f.published) != 21 {
		t.Errorf("published %v", f.published)
	}
	checkCount := func(status runs.Status, want float64) {
		t.Helper()
		if got := sample(t, reg, "postern_runs_total", job, string(status)) + sample(t, otherReg, "postern_runs_total",
			job, string(status)); got != want {
			t.Errorf("%s: counted %g, want %g", status, got, want)
		}
	}
	checkCount(runs.Done, 15)
	checkCount(runs.Failed, 5)
	checkCount(runs.Cancelled, 1)
	f.setUnavailable(true)
	must(t, runs.ChangeStatus(t.Context(), c.operator, 29, runs.Cancelled))
	if n, err := publisher.PublishEnded(t.Context()); err == nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	f.setUnavailable(false)
	if n, err := other.PublishEnded(t.Context()); err != nil || n != 0 {
		t.Errorf("published again immediately: %d, %v", n, err)
	}
	c.set(t, instant(t, "2026-05-01T12:02:00Z"))
	if n, err := other.PublishEnded(t.Context()); err != nil || n != 1 ||
		f.published[len(f.published)-1] != "29 cancelled" {
		t.Errorf("%d, %v, %v", n, err, f.published)
	}
	checkCount(runs.Cancelled, 2)
}

// Wake makes a running publisher search immediately.
func TestEndPublisher_wake_publishesImmediately(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f := &fakeStream{}
	publisher, _ := b.endPublisher(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- publisher.Run(ctx) }()
	run := b.create(t, "")
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Cancelled))
	testkit.Eventually(t, time.Minute, func() error {
		publisher.Wake()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.published) != 1 {
			return fmt.Errorf("published %v", f.published)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The metrics show open runs, the age of queued ones, skipped times and the last success.
func TestMetrics_runsAndSchedules_matchTables(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	reg := prometheus.NewRegistry()
	m, err := runs.NewMetrics(reg, []string{job})
	must(t, err)
	p := c.planner(schedule("s", "0 * * * *"), schedule("never", "0 0 1 1 *"))
	tick(t, p)
	for range 3 {
		c.create(t, "")
	}
	c.acquire(t, "me", 24*time.Hour)
	c.at(t, p, "2026-05-01T13:00:00Z")
	c.at(t, p, "2026-05-01T14:00:30Z")
	must(t, m.Read(t.Context(), c.processor))
	const open, waits, skipped, success = "postern_runs_open", "postern_runs_waiting_seconds",
		"postern_schedule_skipped_total", "postern_schedule_last_success_timestamp_seconds"
	check := func(want float64, name string, labels ...string) {
		t.Helper()
		if got := sample(t, reg, name, labels...); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%s %v: %g, want %g", name, labels, got, want)
		}
	}
	check(3, open, job, "queued")
	check(1, open, job, "running")
	check(0, open, job, "paused")
	check(7230, waits)
	check(1, skipped, "s")
	check(0, skipped, "never")
	check(0, success, "s")
	c.finish(t)
	succeeded := float64(instant(t, "2026-05-01T14:00:30Z").Unix())
	must(t, m.Read(t.Context(), c.processor))
	check(succeeded, success, "s")
	check(0, open, job, "queued")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m.Read(ctx, c.processor) == nil {
		t.Error("a read without a database succeeds")
	}
	check(math.NaN(), open, job, "queued")
	check(math.NaN(), waits)
	check(math.NaN(), success, "s")
	check(1, skipped, "s") // counters keep their values, so that no increase is lost
	must(t, m.Read(t.Context(), c.processor))
	check(succeeded, success, "s")
}

// Old runs expire, except open ones, those with outcomes and those whose end is not published.
// Schedules keep their state.
func TestExpire_oldRuns_keepsOpenUnpublishedAndReferenced(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	p := c.planner(schedule("s", "0 * * * *"))
	tick(t, p)
	c.at(t, p, "2026-05-01T13:00:00Z")
	for range 1200 {
		c.create(t, "old")
	}
	c.finish(t)
	f := &fakeStream{}
	publisher, _ := c.endPublisher(t, f)
	for n := 1; n > 0; {
		var err error
		if n, err = publisher.PublishEnded(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version)
VALUES (1, 7, 1, 0, '', '', '', 'ignored', '', 1, clock_now(), 1)`)
	c.set(t, instant(t, "2026-05-20T12:00:00Z"))
	open, recent := c.create(t, "open"), c.create(t, "recent")
	must(t, runs.ChangeStatus(t.Context(), c.operator, recent, runs.Cancelled))
	kept := []string{"7", fmt.Sprint(open), fmt.Sprint(recent)}
	maintenance, before := c.db.Role(t, "maintenance"), instant(t, "2026-05-10T12:00:00Z")
	if n, err := runs.CountExpired(t.Context(), c.operator, before); err != nil || n != 1200 {
		t.Errorf("would delete %d, %v", n, err)
	}
	expire := func(before time.Time, want int64) {
		t.Helper()
		if n, err := runs.Expire(t.Context(), maintenance, before); err != nil || n != want {
			t.Errorf("deleted %d, %v; want %d", n, err, want)
		}
	}
	expire(before, 1200)
	expire(before, 0)
	c.set(t, instant(t, "2026-06-20T12:00:00Z")) // the end of the cancelled run is not published
	expire(instant(t, "2026-06-10T12:00:00Z"), 0)
	equal(t, "remaining runs", kept, c.db.QueryStrings(t, `SELECT run::text FROM runs r ORDER BY r.run`))
	c.db.WantRows(t, 1, "checkpoints WHERE run > 0")
	if s := c.scheduleState(t, "s"); s.LastRun != 0 || s.SucceededAt.IsZero() {
		t.Errorf("%+v", s)
	}
}
