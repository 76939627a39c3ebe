package runs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
				if _, err := b.processor.Exec(t.Context(), `UPDATE runs SET status = 'running', ended_at = NULL WHERE run = $1`, run); err != nil {
					t.Fatal(err)
				}
			}
			next, err := b.processor.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = next.Rollback(context.Background()) }()
			for _, sql := range []string{`UPDATE checkpoints SET leased_by = 'next' WHERE run = $1`, `UPDATE runs SET status = 'running', updated_at = clock_now() WHERE run = $1`} {
				if _, err := next.Exec(t.Context(), sql, run); err != nil {
					t.Fatal(err)
				}
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
			if err := next.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-got; !errors.Is(err, runs.ErrLost) {
				t.Errorf("%v", err)
			}
			if r := b.show(t, run); r.Status != runs.Running {
				t.Errorf("the run is %s", r.Status)
			}
		})
	}
}
