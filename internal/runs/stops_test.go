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

// What a person stops ends in the middle of a step, however long that is. It is not said to be
// lost, what it meets afterwards is no trouble of its own, so that it is not put off, and it can be
// taken at once when it goes on.
func TestAStopEndsAStep(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lease time.Duration
		carry func(ctx context.Context, b *testBundle, h *runs.Hold, stop func()) (runs.Status, error)
	}{
		"in a step": {300 * time.Millisecond, func(ctx context.Context, _ *testBundle, _ *runs.Hold,
			stop func()) (runs.Status, error) {
			stop()
			<-ctx.Done()
			return "", ctx.Err()
		}},
		"at its end": {time.Hour, func(ctx context.Context, b *testBundle, h *runs.Hold, stop func()) (runs.Status,
			error) {
			stop()
			return runs.Done, pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.Done(ctx, tx) })
		}},
		"before trouble": {time.Hour, func(_ context.Context, _ *testBundle, _ *runs.Hold, stop func()) (runs.Status,
			error) {
			stop()
			return "", errors.New("refused by the database, since the run is not running")
		}},
	} {
		for _, to := range []runs.Status{runs.Cancelled, runs.Paused} {
			t.Run(name+" "+string(to), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				run := b.ask(t, "")
				ended := make(chan struct{})
				jobs := map[string]runs.Carry{job: func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status,
					error) {
					defer close(ended)
					return c.carry(ctx, b, h, func() {
						if err := runs.Change(ctx, b.operator, run, to); err != nil {
							t.Error(err)
						}
					})
				}}
				r := b.run(t, b.processor, c.lease, jobs)
				<-ended
				b.leaseEnds(t, run)
				r.stop()
				said := r.said.String()
				if strings.Contains(said, "lost") || strings.Contains(said, "WARN") || !strings.Contains(said,
					`msg="run stopped"`) ||
					!strings.Contains(said, "status="+string(to)) {
					t.Error(said)
				}
				if got := b.show(t, run); got.Status != to || got.Troubles != 0 || got.Detail != "" {
					t.Errorf("%+v", got)
				}
				if n := sample(t, r.metrics, "postern_runs_put_off_total", job); n != 0 {
					t.Errorf("put off %g times", n)
				}
				var free bool
				const sql = `SELECT leased_by = '' AND leased_until < clock_now() FROM checkpoints WHERE run = $1`
				if err := b.operator.QueryRow(t.Context(), sql, run).Scan(&free); err != nil || !free {
					t.Errorf("cannot be taken at once, %v", err)
				}
			})
		}
	}
}

// leaseEnds waits until the process has given back the lease of a run, which a run that was cancelled no longer shows.
func (b *testBundle) leaseEnds(t *testing.T, run int64) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var by string
		err := b.operator.QueryRow(t.Context(), `SELECT leased_by FROM checkpoints WHERE run = $1`, run).Scan(&by)
		if err == nil && by != "" {
			err = errors.New("held by " + by)
		}
		return err
	})
}

// Who has lost a run is told so also where the next one's taking of it is just being committed: it has waited for that, and sees it.
func TestGuardWhileTheRunIsTaken(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(*testBundle, context.Context, *runs.Hold) error{
		"guard": func(b *testBundle, ctx context.Context, h *runs.Hold) error {
			return pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.Guard(ctx, tx) })
		},
		"done": func(b *testBundle, ctx context.Context, h *runs.Hold) error {
			return pgx.BeginFunc(ctx, b.processor, func(tx pgx.Tx) error { return h.Done(ctx, tx) })
		},
		"rest": func(_ *testBundle, ctx context.Context, h *runs.Hold) error {
			_, err := h.Rest(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.ask(t, "because")
			lost := b.take(t, "lost", time.Minute)
			if err := try(b, t.Context(), lost); name == "guard" && err != nil {
				t.Errorf("who has the run: %v", err)
			}
			if name != "guard" { // ended or resting now
				execSQL(t, b.processor, `UPDATE runs SET status = 'running', ended_at = NULL WHERE run = $1`, run)
			}
			next, err := b.processor.Begin(t.Context())
			must(t, err)
			defer func() { _ = next.Rollback(context.Background()) }()
			for _, sql := range []string{`UPDATE checkpoints SET leased_by = 'next' WHERE run = $1`, `UPDATE runs SET status = 'running', updated_at = clock_now() WHERE run = $1`} {
				execSQL(t, next, sql, run)
			}
			got := make(chan error, 1)
			go func() { got <- try(b, t.Context(), lost) }()
			testkit.Eventually(t, time.Minute, func() error {
				var n int
				err := b.operator.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, next.Conn().PgConn().PID()).Scan(&n)
				if err == nil && n == 0 {
					err = fmt.Errorf("nobody waits")
				}
				return err
			})
			must(t, next.Commit(t.Context()))
			if err := <-got; !errors.Is(err, runs.ErrLost) {
				t.Errorf("%v", err)
			}
			if r := b.show(t, run); r.Status != runs.Running {
				t.Errorf("the run is %s", r.Status)
			}
		})
	}
}

// through is a pool of processors by way of a proxy.
func through(t *testing.T, p *testkit.FaultProxy) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: p.URL, Role: "postern_processor", MaxConns: 10})
	must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// Where the link to PostgreSQL hangs while a run is carried out, the run goes on: another process has it as soon as its lease is over, and where that is renewed over a new connection, the call that hangs
// ends. Each step counts once, and the process that hung carries out the next run, over new connections where the old ones are never heard of again, or when the link is back.
func TestAHangingLink(t *testing.T) {
	t.Parallel()
	const steps, hangs = 6, 3
	for name, fault := range map[string]func(*testkit.FaultProxy) (end func()){
		"old connections for good": func(p *testkit.FaultProxy) func() { p.StallLinks(); return func() {} },
		"the answers, for a while": func(p *testkit.FaultProxy) func() { p.StallAnswers(); return p.Restore },
		"all of it, for a while":   func(p *testkit.FaultProxy) func() { p.Stall(); return p.Restore },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			b := &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
			proxy := testkit.Proxy(t, db.URL)
			reached, hanging := make(chan struct{}), make(chan struct{})
			var once sync.Once
			carry := func(before func(h *runs.Hold)) map[string]runs.Carry {
				return map[string]runs.Carry{job: func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (status runs.Status, err error) {
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
			run := b.ask(t, "")
			b.run(t, through(t, proxy), 500*time.Millisecond, carry(func(h *runs.Hold) {
				if h.Cursor == hangs {
					once.Do(func() { close(reached); <-hanging })
				}
			}))
			<-reached
			end := fault(proxy)
			close(hanging)
			other := b.run(t, b.processor, time.Minute, carry(func(*runs.Hold) {}))
			b.untilStatus(t, run, runs.Done)
			other.stop()
			end()
			if got := b.show(t, run); got.Cursor != steps || got.Counts["steps"] != steps {
				t.Errorf("at %d, with %v steps; want %d", got.Cursor, got.Counts, steps)
			}
			b.untilStatus(t, b.ask(t, ""), runs.Done)
			if got := b.show(t, run); got.Cursor != steps || got.Counts["steps"] != steps || got.Status != runs.Done {
				t.Errorf("then at %d, with %v steps, %s; want %d", got.Cursor, got.Counts, got.Status, steps)
			}
		})
	}
}

// A run that is taken while the process stops is free at once, though the answer that says so comes late.
func TestATakeAtAStop(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	b := &testBundle{db.Role(t, "operator"), db.Role(t, "processor")}
	proxy := testkit.Proxy(t, db.URL)
	r := b.run(t, through(t, proxy), time.Hour, map[string]runs.Carry{job: func(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
		if string(h.Asked) == `"end"` {
			return runs.Running, nil
		}
		<-ctx.Done()
		return "", ctx.Err()
	}})
	first, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: job, Asked: "end", Who: "me"})
	must(t, err)
	b.untilStatus(t, first, runs.Done)
	lock, err := db.Pool.Begin(t.Context())
	must(t, err)
	defer func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }()
	execSQL(t, lock, `LOCK TABLE checkpoints IN EXCLUSIVE MODE`)
	run := b.ask(t, "")
	testkit.Eventually(t, time.Minute, func() error {
		var asks int
		err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE relation = 'checkpoints'::regclass AND NOT granted`).Scan(&asks)
		if err == nil && asks == 0 {
			err = errors.New("nobody asks for runs")
		}
		return err
	})
	proxy.StallAnswers()
	must(t, lock.Rollback(t.Context()))
	b.until(t, run, "taken", func(r *runs.Run) bool { return r.HeldBy != "" })
	r.cancel()
	proxy.Restore()
	r.stop()
	if got := b.show(t, run); got.HeldBy != "" || got.Status != runs.Running {
		t.Errorf("%s, held by %q", got.Status, got.HeldBy)
	}
}
