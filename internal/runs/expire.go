package runs

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// expiredSQL excludes runs that still have outcomes and runs whose end is not published.
const expiredSQL = `FROM runs r WHERE r.ended_at < $1 AND r.published_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM outcomes o WHERE o.run = r.run AND o.run > 0)`

const (
	expireSQL = `DELETE FROM runs WHERE run IN (SELECT r.run ` + expiredSQL + ` ORDER BY r.ended_at LIMIT $2)
		RETURNING run`

	countExpiredSQL = `SELECT count(*) ` + expiredSQL
)

const deleteCheckpointsSQL = `DELETE FROM checkpoints WHERE run = ANY($1::bigint[])`

// expireBatch is the maximum number of runs that one transaction deletes.
const expireBatch = 1000

// Expire deletes runs that ended before a time, with their checkpoints and idempotency keys, and
// returns how many. It keeps runs that still have outcomes and runs whose end is not published. The
// pool is connected as postern_maintenance.
func Expire(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	for {
		batch, err := expireOneBatch(ctx, pool, before)
		if n += batch; err != nil || batch < expireBatch {
			return n, err
		}
	}
}

// CountExpired returns how many runs Expire would delete.
func CountExpired(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	if err := pool.QueryRow(ctx, countExpiredSQL, before).Scan(&n); err != nil {
		return 0, fmt.Errorf("count expired runs: %w", err)
	}
	return n, nil
}

// expireOneBatch deletes runs and then their checkpoints.
func expireOneBatch(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	err = postgres.InTx(ctx, pool, "delete expired runs", expireTimeout, func(ctx context.Context, tx pgx.Tx) error {
		deletedRuns, err := postgres.Collect(ctx, tx, pgx.RowTo[int64], expireSQL, before, expireBatch)
		if err != nil {
			return err
		}
		n = int64(len(deletedRuns))
		_, err = tx.Exec(ctx, deleteCheckpointsSQL, deletedRuns)
		return err
	})
	return n, err
}

const expireTimeout = time.Minute
