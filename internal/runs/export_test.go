package runs

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// RunSchedule creates a run of a schedule's job now, paused or not. The overlap policy applies. It
// returns the run and whether it is new: with an idempotency key that was used before it returns
// the earlier run. Errors: events.ErrNotFound, events.ErrInvalid.
func RunSchedule(ctx context.Context, pool *pgxpool.Pool, jobs map[string]RequestBuilder, name, actor, reason,
	idempotencyKey string) (run int64, created bool, err error) {
	f, err := PrepareScheduleRun(ctx, pool, jobs, name, actor, reason, idempotencyKey)
	if err != nil {
		return 0, false, err
	}
	err = postgres.InTx(ctx, pool, "run schedule "+name, decideTimeout,
		func(ctx context.Context, tx pgx.Tx) (err error) {
			run, created, err = f.Insert(ctx, tx)
			return err
		})
	return run, created, err
}
