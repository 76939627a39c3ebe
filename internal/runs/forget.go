package runs

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// oldSQL leaves alone what still has outcomes, and what was not told.
const oldSQL = `FROM runs r WHERE r.ended_at < $1 AND r.told_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM outcomes o WHERE o.run = r.run AND o.run > 0)`

const (
	forgetSQL = `DELETE FROM runs WHERE run IN (SELECT r.run ` + oldSQL + ` ORDER BY r.ended_at LIMIT $2) RETURNING run`

	countOldSQL = `SELECT count(*) ` + oldSQL
)

const forgetCheckpointsSQL = `DELETE FROM checkpoints WHERE run = ANY($1::bigint[])`

// forgetMost bounds the runs that one transaction forgets.
const forgetMost = 1000

// Forget deletes runs that ended before a time, with their checkpoints, and returns how many. A run that still has outcomes, or whose
// end was not told yet, stays, and with a run goes its once key. The pool is connected as postern_maintenance.
func Forget(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	for {
		some, err := forgetSome(ctx, pool, before)
		if n += some; err != nil || some < forgetMost {
			return n, err
		}
	}
}

// CountOld is how many runs Forget would delete.
func CountOld(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	if err := pool.QueryRow(ctx, countOldSQL, before).Scan(&n); err != nil {
		return 0, fmt.Errorf("count old runs: %w", err)
	}
	return n, nil
}

// forgetSome forgets runs and then their checkpoints, which mean nothing without them.
func forgetSome(ctx context.Context, pool *pgxpool.Pool, before time.Time) (n int64, err error) {
	err = postgres.InTx(ctx, pool, "forget runs", forgetWithin, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, forgetSQL, before, forgetMost)
		if err != nil {
			return err
		}
		gone, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		n = int64(len(gone))
		_, err = tx.Exec(ctx, forgetCheckpointsSQL, gone)
		return err
	})
	return n, err
}

const forgetWithin = time.Minute
