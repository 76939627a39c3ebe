package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Querier is a pool, a connection or a transaction that can read.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Collect returns all rows of a query. read reads one row, e.g. pgx.RowTo or pgx.RowToStructByPos.
func Collect[T any](ctx context.Context, db Querier, read pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, read)
}

// CollectOne returns the only row of a query. Errors: pgx.ErrNoRows, pgx.ErrTooManyRows.
func CollectOne[T any](ctx context.Context, db Querier, read pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, read)
}

// ForEach scans each row of a query into the targets, and then calls do.
func ForEach(ctx context.Context, db Querier, sql string, args, targets []any, do func() error) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, targets, do)
	return err
}

// ReadSnapshot runs fn in a read-only transaction whose statements all see the data of one moment.
func ReadSnapshot(ctx context.Context, pool *pgxpool.Pool, fn func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, fn)
}
