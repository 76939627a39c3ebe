package runs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// An operator's stop ends a step immediately, however long it is. The runner does not report a lost
// lease, does not count a failure, and releases the run.
func TestRunner_operatorStopsRun_endsStepAndReleases(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease time.Duration
		// afterStop is the rest of the step in which the operator stops the run.
		afterStop func(ctx context.Context, b *testBundle, h *runs.Lease) (runs.Status, error)
	}{
		"in a step": {300 * time.Millisecond, func(ctx context.Context, _ *testBundle, _ *runs.Lease) (runs.Status,
			error) {
			<-ctx.Done()
			return "", ctx.Err()
		}},
		"after the last step": {time.Hour, func(ctx context.Context, b *testBundle, h *runs.Lease) (runs.Status,
			error) {
			return runs.Done, pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.CompleteInTx(ctx, tx) })
		}},
		"before an error": {time.Hour, func(context.Context, *testBundle, *runs.Lease) (runs.Status, error) {
			return "", errors.New("the database rejected a run that is not running")
		}},
	} {
		for _, to := range []runs.Status{runs.Cancelled, runs.Paused} {
			t.Run(name+" "+string(to), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				run := b.create(t, "")
				ended := make(chan struct{})
				jobs := map[string]runs.Executor{job: func(ctx context.Context, h *runs.Lease,
					_ *slog.Logger) (runs.Status, error) {
					defer close(ended)
					if err := runs.ChangeStatus(ctx, b.operator, run, to); err != nil {
						t.Error(err)
					}
					return c.afterStop(ctx, b, h)
				}}
				r := b.startRunner(t, b.processor, c.lease, jobs)
				<-ended
				// A cancelled run does not show its lease owner.
				b.awaitNonZero(t, `SELECT count(*) FROM checkpoints WHERE run = $1 AND lease_owner = ''`, run)
				r.stop()
				logged := r.log.String()
				if strings.Contains(logged, "lost") || strings.Contains(logged, "WARN") || !strings.Contains(logged,
					`msg="run stopped"`) || !strings.Contains(logged, "status="+string(to)) {
					t.Error(logged)
				}
				if got := b.show(t, run); got.Status != to || got.ConsecutiveFailures != 0 || got.Detail != "" {
					t.Errorf("%+v", got)
				}
				if n := sample(t, r.metrics, "postern_runs_deferred_total", job); n != 0 {
					t.Errorf("deferred %g times", n)
				}
				var free bool
				const sql = `SELECT lease_owner = '' AND lease_until < clock_now() FROM checkpoints WHERE run = $1`
				if err := b.operator.QueryRow(t.Context(), sql, run).Scan(&free); err != nil || !free {
					t.Errorf("not released, %v", err)
				}
			})
		}
	}
}

// awaitNonZero waits until a query of one number returns another one than 0.
func (b *testBundle) awaitNonZero(t *testing.T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		err := b.operator.QueryRow(t.Context(), sql, args...).Scan(&n)
		if err == nil && n == 0 {
			err = fmt.Errorf("%s: still 0", sql)
		}
		return err
	})
}

// A process that has lost its lease gets an error even if the next owner commits just then: it
// waits for the commit and sees it.
func TestLease_otherOwnerCommits_returnsErrLeaseLost(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(*testBundle, context.Context, *runs.Lease) error{
		"guard": func(b *testBundle, ctx context.Context, h *runs.Lease) error {
			return pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.Guard(ctx, tx) })
		},
		"done": func(b *testBundle, ctx context.Context, h *runs.Lease) error {
			return pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.CompleteInTx(ctx, tx) })
		},
		"rest": func(_ *testBundle, ctx context.Context, h *runs.Lease) error {
			_, err := h.AwaitDecision(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.create(t, "because")
			lost := b.acquire(t, "lost", time.Minute)
			if err := try(b, t.Context(), lost); name == "guard" && err != nil {
				t.Errorf("the owner of the lease: %v", err)
			}
			if name != "guard" { // the call has ended or paused it
				execSQL(t, b.processor, `UPDATE runs SET status = 'running', ended_at = NULL WHERE run = $1`, run)
			}
			next := testkit.OpenTx(t, b.processor, `UPDATE checkpoints SET lease_owner = 'next' WHERE run = $1`, run)
			execSQL(t, next, `UPDATE runs SET status = 'running', updated_at = clock_now() WHERE run = $1`, run)
			got := make(chan error, 1)
			go func() { got <- try(b, t.Context(), lost) }()
			b.awaitNonZero(t, `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`,
				next.Conn().PgConn().PID())
			must(t, next.Commit(t.Context()))
			if err := <-got; !errors.Is(err, runs.ErrLeaseLost) {
				t.Errorf("%v", err)
			}
			if r := b.show(t, run); r.Status != runs.Running {
				t.Errorf("the run is %s", r.Status)
			}
		})
	}
}

// poolThroughProxy is a processor's pool with connections through a proxy.
func poolThroughProxy(t *testing.T, p *testkit.FaultProxy) *pgxpool.Pool {
	t.Helper()
	connections := new(postgres.Connections)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: p.URL, Role: "postern_processor", MaxConns: 10,
		Connections: connections})
	must(t, err)
	t.Cleanup(pool.Close)
	tick := time.NewTicker(time.Second)
	t.Cleanup(tick.Stop)
	go func() { // as a daemon does, less often; it ends with the test
		for t.Context().Err() == nil {
			select {
			case <-tick.C:
				connections.CloseSilent(15 * time.Second)
			case <-t.Context().Done():
			}
		}
	}()
	return pool
}

// If the connection to PostgreSQL stalls, another process continues the run after the lease has
// expired. If the lease is renewed over a new connection, the stalled call ends. Each step counts
// once. Afterwards the first process executes the next run, over new connections or after the
// stall.
func TestRunner_connectionStalls_everyStepCountsOnce(t *testing.T) {
	t.Parallel()
	const steps, stallAt = 6, 3
	for name, fault := range map[string]func(*testkit.FaultProxy) (end func()){
		"old connections for good": func(p *testkit.FaultProxy) func() { p.StallOpenConnections(); return func() {} },
		"responses for a while":    func(p *testkit.FaultProxy) func() { p.StallResponses(); return p.Restore },
		"everything for a while":   func(p *testkit.FaultProxy) func() { p.Stall(); return p.Restore },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			b := &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
			proxy := testkit.Proxy(t, db.URL)
			reached, stalled := make(chan struct{}), make(chan struct{})
			var once sync.Once
			executors := func(before func(h *runs.Lease)) map[string]runs.Executor {
				return map[string]runs.Executor{job: func(ctx context.Context, h *runs.Lease,
					_ *slog.Logger) (status runs.Status, err error) {
					for status = runs.Running; h.Cursor < steps && status == runs.Running; {
						before(h)
						h.Counts["steps"]++
						if status, err = h.Advance(ctx, h.Cursor+1); err != nil {
							return "", err
						}
					}
					return status, nil
				}}
			}
			run := b.create(t, "")
			b.startRunner(t, poolThroughProxy(t, proxy), 500*time.Millisecond, executors(func(h *runs.Lease) {
				if h.Cursor == stallAt {
					once.Do(func() { close(reached); <-stalled })
				}
			}))
			<-reached
			end := fault(proxy)
			close(stalled)
			other := b.startRunner(t, b.processor, time.Minute, executors(func(*runs.Lease) {}))
			b.waitForStatus(t, run, runs.Done)
			other.stop()
			end()
			if got := b.show(t, run); got.Cursor != steps || got.Counts["steps"] != steps {
				t.Errorf("cursor %d, counts %v; want %d steps", got.Cursor, got.Counts, steps)
			}
			b.waitForStatus(t, b.create(t, ""), runs.Done)
			if got := b.show(t, run); got.Cursor != steps || got.Counts["steps"] != steps || got.Status != runs.Done {
				t.Errorf("then cursor %d, counts %v, %s; want %d steps", got.Cursor, got.Counts, got.Status, steps)
			}
		})
	}
}

// A run that is leased while the process stops is released immediately, although the response
// arrives late.
func TestRunner_stopDuringAcquire_releasesRun(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	b := &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
	proxy := testkit.Proxy(t, db.URL)
	r := b.startRunner(t, poolThroughProxy(t, proxy), time.Hour,
		map[string]runs.Executor{job: func(ctx context.Context, h *runs.Lease, _ *slog.Logger) (runs.Status, error) {
			if string(h.Params) == `"end"` {
				return runs.Running, nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		}})
	first, err := runs.Create(t.Context(), b.operator, runs.Request{Job: job, Params: "end", Actor: "me"})
	must(t, err)
	b.waitForStatus(t, first, runs.Done)
	lock := testkit.OpenTx(t, db.Pool, `LOCK TABLE checkpoints IN EXCLUSIVE MODE`)
	run := b.create(t, "")
	b.awaitNonZero(t, `SELECT count(*) FROM pg_locks WHERE relation = 'checkpoints'::regclass AND NOT granted`)
	proxy.StallResponses()
	must(t, lock.Rollback(t.Context()))
	b.waitFor(t, run, "taken", func(r *runs.Run) bool { return r.LeaseOwner != "" })
	r.cancel()
	proxy.Restore()
	r.stop()
	if got := b.show(t, run); got.LeaseOwner != "" || got.Status != runs.Running {
		t.Errorf("%s, leased by %q", got.Status, got.LeaseOwner)
	}
}
