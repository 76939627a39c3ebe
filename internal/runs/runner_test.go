package runs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// runnerBundle is a running runner with its log and metrics.
type runnerBundle struct {
	log     *bytes.Buffer
	metrics *prometheus.Registry
	// cancel tells the runner to end; stop also waits for the end.
	cancel, stop func()
}

// startRunner starts a runner without shared slots.
func (b *testBundle) startRunner(t *testing.T, pool *pgxpool.Pool, lease time.Duration,
	jobs map[string]runs.Executor) *runnerBundle {
	t.Helper()
	var names []string
	for name := range jobs {
		names = append(names, name)
	}
	out := &runnerBundle{log: &bytes.Buffer{}, metrics: prometheus.NewRegistry()}
	metrics, err := runs.NewMetrics(out.metrics, names)
	must(t, err)
	r := runs.NewRunner(runs.Options{Pool: pool, ID: "one", Jobs: jobs, Metrics: metrics,
		Logger: slog.New(slog.NewTextHandler(out.log, nil)), Settings: runs.Settings{PollInterval: 10 *
			time.Millisecond, LeaseDuration: lease, DeferMin: time.Millisecond, DeferMax: 20 * time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	out.cancel = cancel
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	out.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(out.stop)
	return out
}

func (b *testBundle) createForJob(t *testing.T, job string) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.operator, runs.Request{Job: job, Params: struct{}{}, Actor: "me"})
	must(t, err)
	return run
}

// waitFor waits until a run satisfies a condition.
func (b *testBundle) waitFor(t *testing.T, run int64, condition string, satisfied func(*runs.Run) bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if r, err := runs.Show(t.Context(), b.operator, run); err != nil || !satisfied(r) {
			return fmt.Errorf("not %s: %+v, %v", condition, r, err)
		}
		return nil
	})
}

func (b *testBundle) waitForStatus(t *testing.T, run int64, want runs.Status) {
	t.Helper()
	b.waitFor(t, run, string(want), func(r *runs.Run) bool { return r.Status == want })
}

// Runs with errors do not block other runs, show the reason of the delay, and continue when the
// cause is repaired. The error of each is logged once.
func TestRunner_failingRuns_doNotBlockOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	failing := []int64{b.create(t, ""), b.create(t, "")}
	healthy := b.create(t, "")
	var repaired atomic.Bool
	var tries [2]atomic.Int64
	r := b.startRunner(t, b.processor, time.Minute,
		map[string]runs.Executor{job: func(_ context.Context, h *runs.Lease, _ *slog.Logger) (runs.Status, error) {
			for i, run := range failing {
				if run == h.Run.ID && !repaired.Load() {
					tries[i].Add(1)
					return "", fmt.Errorf("permission denied for run %d", run)
				}
			}
			return runs.Running, nil
		}})
	b.waitForStatus(t, healthy, runs.Done)
	for i, run := range failing {
		b.waitFor(t, run, "deferred with a reason", func(r *runs.Run) bool {
			return tries[i].Load() > 3 && r.Status == runs.Running && r.LeaseOwner == "" && r.ConsecutiveFailures > 3 &&
				r.Detail == fmt.Sprintf("permission denied for run %d", run)
		})
	}
	repaired.Store(true)
	for _, run := range failing {
		b.waitFor(t, run, "done without a detail", func(r *runs.Run) bool {
			return r.Status == runs.Done && r.Detail == ""
		})
	}
	r.stop()
	for _, run := range failing {
		if n := strings.Count(r.log.String(), fmt.Sprintf("permission denied for run %d", run)); n != 1 {
			t.Errorf("run %d: logged %d times:\n%s", run, n, r.log)
		}
	}
	if n, want := sample(t, r.metrics, "postern_runs_deferred_total", job), tries[0].Load()+
		tries[1].Load(); n != float64(want) {
		t.Errorf("counted %g of %d", n, want)
	}
}

// The wait doubles with each consecutive failure up to a maximum, until the run makes progress.
func TestDefer_consecutiveFailures_doublesWaitUntilProgress(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	run := c.create(t, "")
	acquireAfter := func(wait time.Duration) *runs.Lease {
		t.Helper()
		c.set(t, now.Add(wait-time.Microsecond))
		if h := c.acquire(t, "me", time.Hour); h != nil {
			t.Fatalf("leased %s early", time.Microsecond)
		}
		now = now.Add(wait + time.Millisecond)
		c.set(t, now)
		h := c.acquire(t, "me", time.Hour)
		if h == nil || h.Abandoned {
			t.Fatalf("after %s: %+v", wait, h)
		}
		return h
	}
	deferRun := func(h *runs.Lease, want int) {
		t.Helper()
		if n, err := h.Defer(t.Context(), errors.New("trouble\x00"), time.Second, 10*time.Second); n != want ||
			err != nil {
			t.Fatalf("%d, %v; want %d", n, err, want)
		}
	}
	h := c.acquire(t, "me", time.Hour)
	deferRun(h, 1)
	deferRun(h, 0) // the lease is released already
	h = acquireAfter(time.Second)
	deferRun(h, 2)
	h = acquireAfter(2 * time.Second)
	must(t, errOf(h.Advance(t.Context(), h.Cursor))) // which is no progress
	if r := c.show(t, run); !strings.HasPrefix(r.Detail, "trouble") {
		t.Errorf("detail is %q", r.Detail)
	}
	for i, wait := range []time.Duration{4, 8, 10, 10} {
		deferRun(h, 3+i)
		h = acquireAfter(wait * time.Second)
	}
	h.Counts["applied"]++
	must(t, errOf(h.Advance(t.Context(), h.Cursor)))
	if r := c.show(t, run); r.Detail != "" {
		t.Errorf("detail is still %q", r.Detail)
	}
	deferRun(h, 1)
	h = acquireAfter(time.Second)
	must(t, errOf(h.Advance(t.Context(), 7)))
	deferRun(h, 1)
}

// Runs are leased in the order of their last attempt, so that no run waits behind others that fail
// again and again.
func TestAcquire_deferredRuns_takeTurns(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	for range 3 {
		c.create(t, "")
	}
	var turns []int64
	for range 7 {
		now = now.Add(time.Second)
		c.set(t, now)
		h := c.acquire(t, "me", time.Minute)
		turns = append(turns, h.Run.ID)
		must(t, errOf(h.Defer(t.Context(), errors.New("trouble"), 0, 0)))
	}
	if got := fmt.Sprint(turns); got != "[1 2 3 1 2 3 1]" {
		t.Errorf("leased: %s", got)
	}
}

// A job with many runs does not block other jobs.
func TestRunner_manyRunsOfOneJob_otherJobStillRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 5 {
		b.createForJob(t, "long")
	}
	short := b.createForJob(t, "short")
	started, release := make(chan struct{}, 10), make(chan struct{})
	b.startRunner(t, b.processor, time.Minute, map[string]runs.Executor{
		"long": func(context.Context, *runs.Lease, *slog.Logger) (runs.Status, error) {
			started <- struct{}{}
			<-release
			return runs.Running, nil
		},
		"short": func(context.Context, *runs.Lease, *slog.Logger) (runs.Status, error) { return runs.Running, nil },
	})
	t.Cleanup(func() { close(release) }) // before the runner is stopped
	<-started
	b.waitForStatus(t, short, runs.Done)
}

// The runner executes at most half as many runs as the pool has connections, and at least one.
func TestRunner_smallPool_usesAtMostHalfOfConnections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	few := b.processor.Config()
	few.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(t.Context(), few)
	must(t, err)
	t.Cleanup(pool.Close)
	var now, most atomic.Int64
	execute := func(ctx context.Context, h *runs.Lease, _ *slog.Logger) (runs.Status, error) {
		for n, was := now.Add(1), most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		defer now.Add(-1)
		return h.Advance(ctx, 1)
	}
	b.startRunner(t, pool, time.Minute, map[string]runs.Executor{"a": execute, "b": execute, "c": execute})
	var all []int64
	for range 10 {
		all = append(all, b.createForJob(t, "a"), b.createForJob(t, "b"), b.createForJob(t, "c"))
	}
	for _, run := range all {
		b.waitForStatus(t, run, runs.Done)
	}
	if most.Load() != 1 {
		t.Errorf("%d runs at once over 3 connections", most.Load())
	}
}

// A process keeps its lease during a long step, because it renews it.
func TestRunner_longStep_renewsLease(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	const lease = 300 * time.Millisecond // renewed every 100 ms of real time; the database's clock does not move
	run := c.create(t, "")
	started, release := make(chan struct{}), make(chan struct{})
	r := c.startRunner(t, c.processor, lease,
		map[string]runs.Executor{job: func(ctx context.Context, _ *runs.Lease, _ *slog.Logger) (runs.Status, error) {
			close(started)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return runs.Running, nil
		}})
	<-started
	for range 5 {
		now = now.Add(lease - time.Millisecond)
		c.set(t, now)
		testkit.Eventually(t, time.Minute, func() error {
			var until time.Time
			err := c.db.Pool.QueryRow(t.Context(), `SELECT lease_until FROM checkpoints WHERE run = $1`,
				run).Scan(&until)
			if err != nil || !until.Equal(now.Add(lease)) {
				return fmt.Errorf("leased until %s at %s, %w", until, now, err)
			}
			return nil
		})
		if c.acquire(t, "other", lease) != nil {
			t.Fatal("another process leased a run whose lease is renewed")
		}
	}
	close(release)
	c.waitForStatus(t, run, runs.Done)
	r.stop()
}

// A lost lease stops the executor in the middle of a step, and the runner logs it.
func TestRunner_leaseLost_stopsStep(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	run := c.create(t, "")
	started, causes := make(chan struct{}), make(chan error, 1)
	r := c.startRunner(t, c.processor, 300*time.Millisecond,
		map[string]runs.Executor{job: func(ctx context.Context, _ *runs.Lease, _ *slog.Logger) (runs.Status, error) {
			close(started)
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return "", ctx.Err()
		}})
	<-started
	c.db.Exec(t,
		`UPDATE checkpoints SET lease_owner = 'other', lease_until = clock_now() + interval '1 hour' WHERE run = $1`,
		run)
	if err := <-causes; !errors.Is(err, runs.ErrLeaseLost) {
		t.Errorf("context ended with %v", err)
	}
	r.stop()
	if logged := r.log.String(); !strings.Contains(logged, "lease of the run lost to another process") ||
		!strings.Contains(logged, "held_by=other") {
		t.Error(logged)
	}
	if h := c.show(t, run); h.LeaseOwner != "other" || h.Status != runs.Running {
		t.Errorf("%+v", h)
	}
}

// A process that ends releases its runs immediately, and that is not a failure.
func TestRunner_processStops_releasesRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.create(t, "")
	started := make(chan struct{})
	r := b.startRunner(t, b.processor, time.Hour,
		map[string]runs.Executor{job: func(ctx context.Context, _ *runs.Lease, _ *slog.Logger) (runs.Status, error) {
			close(started)
			<-ctx.Done()
			return "", ctx.Err()
		}})
	<-started
	r.stop()
	if got := b.show(t, run); got.Detail != "" || got.LeaseOwner != "" {
		t.Errorf("%+v", got)
	}
	if h := b.acquire(t, "next", time.Minute); h == nil || h.Abandoned {
		t.Errorf("leased %+v", h)
	}
}

// AwaitDecision pauses a run, unless its parameters have changed, an operator has stopped it, or
// another process has the lease.
func TestAwaitDecision_paramsChangedOrLeaseLost_doesNotPause(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	run := c.create(t, "")
	awaitDecision := func(h *runs.Lease, want runs.Status) {
		t.Helper()
		if got, err := h.AwaitDecision(t.Context()); got != want || err != nil {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		if got := c.show(t, run); got.Status != want || want == runs.Paused && got.Detail != "" {
			t.Fatalf("%+v", got)
		}
	}
	change := func(to runs.Status) {
		t.Helper()
		must(t, runs.ChangeStatus(t.Context(), c.operator, run, to))
	}
	h := c.acquire(t, "me", time.Minute)
	must(t, errOf(h.Defer(t.Context(), errors.New("trouble"), 0, 0)))
	c.set(t, instant(t, "2026-05-01T12:00:01Z"))
	h = c.acquire(t, "me", time.Minute)
	awaitDecision(h, runs.Paused)
	must(t, h.Release(t.Context()))
	if c.acquire(t, "other", time.Minute) != nil {
		t.Fatal("a paused run was leased")
	}
	change(runs.Queued)
	h = c.acquire(t, "me", time.Minute)
	execSQL(t, c.operator, `UPDATE runs SET params = '{"type": "y"}' WHERE run = $1`, run)
	awaitDecision(h, runs.Running)
	if string(h.Params) != `{"type": "y"}` {
		t.Errorf("params are %s", h.Params)
	}
	awaitDecision(h, runs.Paused)
	change(runs.Queued)
	awaitDecision(h, runs.Queued) // an operator was faster
	c.set(t, instant(t, "2026-05-01T12:02:00Z"))
	other := c.acquire(t, "other", time.Minute)
	if got, err := h.AwaitDecision(t.Context()); !errors.Is(err, runs.ErrLeaseLost) {
		t.Errorf("%q, %v", got, err)
	}
	change(runs.Cancelled)
	awaitDecision(other, runs.Cancelled)
}

// canceller cancels a context after the first response.
type canceller struct{ cancel func() }

func (c *canceller) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *canceller) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { c.cancel() }

// Acquire gets the run in the response of the statement that leases it. So no interruption leaves a
// lease that no process knows.
func TestAcquire_contextEndsAfterFirstStatement_returnsLease(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.create(t, "why")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config := b.processor.Config()
	config.AfterConnect = nil // it runs statements of its own
	config.ConnConfig.Tracer = &canceller{cancel}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	h, err := runs.Acquire(ctx, pool, "me", time.Hour, job)
	if err != nil || h == nil || h.Run.ID != run || h.Reason != "why" || h.Status != runs.Running ||
		!strings.HasPrefix(h.LeaseOwner, "me/") || ctx.Err() == nil {
		t.Errorf("%+v, %v", h, err)
	}
}
