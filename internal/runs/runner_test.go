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

// running are a runner's parts that a test looks at.
type running struct {
	said    *bytes.Buffer
	metrics *prometheus.Registry
	// cancel tells the runner to end, stop waits for that too.
	cancel, stop func()
}

// run starts a runner with no slots but those of the jobs.
func (b *testBundle) run(t *testing.T, pool *pgxpool.Pool, lease time.Duration, jobs map[string]runs.Carry) *running {
	t.Helper()
	var names []string
	for name := range jobs {
		names = append(names, name)
	}
	out := &running{said: &bytes.Buffer{}, metrics: prometheus.NewRegistry()}
	metrics, err := runs.NewMetrics(out.metrics, names)
	must(t, err)
	r := runs.NewRunner(runs.Options{Pool: pool, ID: "one", Jobs: jobs, Metrics: metrics, Logger: slog.New(slog.NewTextHandler(out.said, nil)),
		Settings: runs.Settings{Poll: 10 * time.Millisecond, Lease: lease, PutOff: time.Millisecond, PutOffMost: 20 * time.Millisecond}})
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

func (b *testBundle) askFor(t *testing.T, job string) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: job, Asked: struct{}{}, Who: "me"})
	must(t, err)
	return run
}

// until waits for a run to be as a test wants it.
func (b *testBundle) until(t *testing.T, run int64, what string, is func(*runs.Run) bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if r, err := runs.Show(t.Context(), b.operator, run); err != nil || !is(r) {
			return fmt.Errorf("not %s: %+v, %v", what, r, err)
		}
		return nil
	})
}

func (b *testBundle) untilStatus(t *testing.T, run int64, want runs.Status) {
	t.Helper()
	b.until(t, run, string(want), func(r *runs.Run) bool { return r.Status == want })
}

// Runs that meet trouble keep no other from being carried out, tell why they wait, and go on when it is over; it is logged once for each.
func TestTroubleStarvesNoOtherRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := []int64{b.ask(t, ""), b.ask(t, "")}
	good := b.ask(t, "")
	var mended atomic.Bool
	var tries [2]atomic.Int64
	r := b.run(t, b.processor, time.Minute, map[string]runs.Carry{job: func(_ context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		for i, run := range bad {
			if run == h.Run.Run && !mended.Load() {
				tries[i].Add(1)
				return "", fmt.Errorf("permission denied for run %d", run)
			}
		}
		return runs.Running, nil
	}})
	b.untilStatus(t, good, runs.Done)
	for i, run := range bad {
		b.until(t, run, "put off with a reason", func(r *runs.Run) bool {
			return tries[i].Load() > 3 && r.Status == runs.Running && r.HeldBy == "" && r.Troubles > 3 && r.Detail == fmt.Sprintf("permission denied for run %d", run)
		})
	}
	mended.Store(true)
	for _, run := range bad {
		b.until(t, run, "done, and nothing to tell", func(r *runs.Run) bool { return r.Status == runs.Done && r.Detail == "" })
	}
	r.stop()
	for _, run := range bad {
		if n := strings.Count(r.said.String(), fmt.Sprintf("permission denied for run %d", run)); n != 1 {
			t.Errorf("run %d: said %d times:\n%s", run, n, r.said)
		}
	}
	if n, want := sample(t, r.metrics, "postern_runs_put_off_total", job), tries[0].Load()+tries[1].Load(); n != float64(want) {
		t.Errorf("counted %g of %d", n, want)
	}
}

// Each time in a row a run waits twice as long, up to a bound, until it has got on.
func TestPutOff(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	run := c.ask(t, "")
	after := func(wait time.Duration) *runs.Hold {
		t.Helper()
		c.set(t, now.Add(wait-time.Microsecond))
		if h := c.take(t, "me", time.Hour); h != nil {
			t.Fatalf("taken %s early", time.Microsecond)
		}
		now = now.Add(wait + time.Millisecond)
		c.set(t, now)
		h := c.take(t, "me", time.Hour)
		if h == nil || h.Abandoned {
			t.Fatalf("after %s: %+v", wait, h)
		}
		return h
	}
	putOff := func(h *runs.Hold, want int) {
		t.Helper()
		if n, err := h.PutOff(t.Context(), errors.New("trouble\x00"), time.Second, 10*time.Second); n != want || err != nil {
			t.Fatalf("%d, %v; want %d", n, err, want)
		}
	}
	h := c.take(t, "me", time.Hour)
	putOff(h, 1)
	putOff(h, 0) // it is not ours any more
	h = after(time.Second)
	putOff(h, 2)
	h = after(2 * time.Second)
	if _, err := h.Advance(t.Context(), h.Cursor); err != nil { // which is not further
		t.Fatal(err)
	}
	if r := c.show(t, run); !strings.HasPrefix(r.Detail, "trouble") {
		t.Errorf("says %q", r.Detail)
	}
	putOff(h, 3)
	h = after(4 * time.Second)
	putOff(h, 4)
	h = after(8 * time.Second)
	putOff(h, 5)
	h = after(10 * time.Second)
	putOff(h, 6)
	h = after(10 * time.Second)
	h.Counts["applied"]++
	must(t, errOf(h.Advance(t.Context(), h.Cursor)))
	if r := c.show(t, run); r.Detail != "" {
		t.Errorf("still says %q", r.Detail)
	}
	putOff(h, 1)
	h = after(time.Second)
	must(t, errOf(h.Advance(t.Context(), 7)))
	putOff(h, 1)
}

// Runs are taken in the order of their last try, so that nobody waits behind those that come again and again.
func TestTakeInTurn(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	for range 3 {
		c.ask(t, "")
	}
	var turns []int64
	for range 7 {
		now = now.Add(time.Second)
		c.set(t, now)
		h := c.take(t, "me", time.Minute)
		turns = append(turns, h.Run.Run)
		must(t, errOf(h.PutOff(t.Context(), errors.New("trouble"), 0, 0)))
	}
	if got := fmt.Sprint(turns); got != "[1 2 3 1 2 3 1]" {
		t.Errorf("taken: %s", got)
	}
}

// However much there is of one job, each other has a place of its own.
func TestEachJobHasASlot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 5 {
		b.askFor(t, "long")
	}
	short := b.askFor(t, "short")
	begun, release := make(chan struct{}, 10), make(chan struct{})
	b.run(t, b.processor, time.Minute, map[string]runs.Carry{
		"long": func(context.Context, *runs.Hold, *slog.Logger) (runs.Status, error) {
			begun <- struct{}{}
			<-release
			return runs.Running, nil
		},
		"short": func(context.Context, *runs.Hold, *slog.Logger) (runs.Status, error) { return runs.Running, nil },
	})
	t.Cleanup(func() { close(release) }) // before the runner is stopped
	<-begun
	b.untilStatus(t, short, runs.Done)
}

// There are never more runs at once than half of the pool's connections, and at least one.
func TestRunsLeaveConnections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	few := b.processor.Config()
	few.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(t.Context(), few)
	must(t, err)
	t.Cleanup(pool.Close)
	var now, most atomic.Int64
	carry := func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		for n, was := now.Add(1), most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		defer now.Add(-1)
		return h.Advance(ctx, 1)
	}
	b.run(t, pool, time.Minute, map[string]runs.Carry{"a": carry, "b": carry, "c": carry})
	var all []int64
	for range 10 {
		all = append(all, b.askFor(t, "a"), b.askFor(t, "b"), b.askFor(t, "c"))
	}
	for _, run := range all {
		b.untilStatus(t, run, runs.Done)
	}
	if most.Load() != 1 {
		t.Errorf("%d runs at once over 3 connections", most.Load())
	}
}

// A process that is at a long step keeps its run: the lease is renewed meanwhile.
func TestTheLeaseIsRenewed(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	now := instant(t, "2026-05-01T12:00:00Z")
	const lease = 300 * time.Millisecond // renewed every 100 ms of real time; the database's clock stands still
	run := c.ask(t, "")
	begun, release := make(chan struct{}), make(chan struct{})
	r := c.run(t, c.processor, lease, map[string]runs.Carry{job: func(ctx context.Context, _ *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		close(begun)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return runs.Running, nil
	}})
	<-begun
	for range 5 {
		now = now.Add(lease - time.Millisecond)
		c.set(t, now)
		testkit.Eventually(t, time.Minute, func() error {
			var until time.Time
			err := c.db.Pool.QueryRow(t.Context(), `SELECT leased_until FROM checkpoints WHERE run = $1`, run).Scan(&until)
			if err != nil || !until.Equal(now.Add(lease)) {
				return fmt.Errorf("leased until %s at %s, %w", until, now, err)
			}
			return nil
		})
		if c.take(t, "other", lease) != nil {
			t.Fatal("taken from who carries it out")
		}
	}
	close(release)
	c.untilStatus(t, run, runs.Done)
	r.stop()
}

// Who has lost a run is stopped in the middle of a step, and says so.
func TestALostRunIsStopped(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	run := c.ask(t, "")
	begun, causes := make(chan struct{}), make(chan error, 1)
	r := c.run(t, c.processor, 300*time.Millisecond, map[string]runs.Carry{job: func(ctx context.Context, _ *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		close(begun)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return "", ctx.Err()
	}})
	<-begun
	c.db.Exec(t,
		`UPDATE checkpoints SET leased_by = 'other', leased_until = clock_now() + interval '1 hour' WHERE run = $1`,
		run)
	if err := <-causes; !errors.Is(err, runs.ErrLost) {
		t.Errorf("stopped by %v", err)
	}
	r.stop()
	if said := r.said.String(); !strings.Contains(said, "run lost to another process") || !strings.Contains(said, "held_by=other") {
		t.Error(said)
	}
	if h := c.show(t, run); h.HeldBy != "other" || h.Status != runs.Running {
		t.Errorf("%+v", h)
	}
}

// A process that ends hands its runs on at once, as no trouble of theirs.
func TestAStopHandsOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ask(t, "")
	begun := make(chan struct{})
	r := b.run(t, b.processor, time.Hour, map[string]runs.Carry{job: func(ctx context.Context, _ *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		close(begun)
		<-ctx.Done()
		return "", ctx.Err()
	}})
	<-begun
	r.stop()
	if got := b.show(t, run); got.Detail != "" || got.HeldBy != "" {
		t.Errorf("%+v", got)
	}
	if h := b.take(t, "next", time.Minute); h == nil || h.Abandoned {
		t.Errorf("took %+v", h)
	}
}

// A run rests paused, unless something else is asked for meanwhile, a person has stopped it, or it is another's.
func TestRest(t *testing.T) {
	t.Parallel()
	c := setupClock(t, "2026-05-01T12:00:00Z")
	run := c.ask(t, "")
	rests := func(h *runs.Hold, want runs.Status) {
		t.Helper()
		if got, err := h.Rest(t.Context()); got != want || err != nil {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
		if got := c.show(t, run); got.Status != want || want == runs.Paused && got.Detail != "" {
			t.Fatalf("%+v", got)
		}
	}
	change := func(to runs.Status) {
		t.Helper()
		must(t, runs.Change(t.Context(), c.operator, run, to))
	}
	h := c.take(t, "me", time.Minute)
	must(t, errOf(h.PutOff(t.Context(), errors.New("trouble"), 0, 0)))
	c.set(t, instant(t, "2026-05-01T12:00:01Z"))
	h = c.take(t, "me", time.Minute)
	rests(h, runs.Paused)
	must(t, h.Release(t.Context()))
	if c.take(t, "other", time.Minute) != nil {
		t.Fatal("a run that rests is taken")
	}
	change(runs.Waiting)
	h = c.take(t, "me", time.Minute)
	execSQL(t, c.operator, `UPDATE runs SET asked = '{"type": "y"}' WHERE run = $1`, run)
	rests(h, runs.Running)
	if string(h.Asked) != `{"type": "y"}` {
		t.Errorf("asked for %s", h.Asked)
	}
	rests(h, runs.Paused)
	change(runs.Waiting)
	rests(h, runs.Waiting) // a person was faster
	c.set(t, instant(t, "2026-05-01T12:02:00Z"))
	other := c.take(t, "other", time.Minute)
	if got, err := h.Rest(t.Context()); !errors.Is(err, runs.ErrLost) {
		t.Errorf("%q, %v", got, err)
	}
	change(runs.Cancelled)
	rests(other, runs.Cancelled)
}

// canceller ends a context when the first statement has been answered.
type canceller struct{ cancel func() }

func (c *canceller) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (c *canceller) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { c.cancel() }

// What is taken is known by the statement that takes it, so that nothing can come between and leave a lease behind that nobody knows of.
func TestTakeIsOneStatement(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.ask(t, "why")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config := b.processor.Config()
	config.AfterConnect = nil // which has statements of its own
	config.ConnConfig.Tracer = &canceller{cancel}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	h, err := runs.Take(ctx, pool, "me", time.Hour, job)
	if err != nil || h == nil || h.Run.Run != run || h.Reason != "why" || h.Status != runs.Running || !strings.HasPrefix(h.HeldBy, "me/") || ctx.Err() == nil {
		t.Errorf("%+v, %v", h, err)
	}
}
