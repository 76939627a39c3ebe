package runs_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// through is a pool of processors by way of a proxy.
func through(t *testing.T, p *testkit.FaultProxy) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: p.URL, Role: "postern_processor", MaxConns: 10})
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	b.untilStatus(t, first, runs.Done)
	lock, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := lock.Exec(t.Context(), `LOCK TABLE checkpoints IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
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
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until(t, run, "taken", func(r *runs.Run) bool { return r.HeldBy != "" })
	r.cancel()
	proxy.Restore()
	r.stop()
	if got := b.show(t, run); got.HeldBy != "" || got.Status != runs.Running {
		t.Errorf("%s, held by %q", got.Status, got.HeldBy)
	}
}
