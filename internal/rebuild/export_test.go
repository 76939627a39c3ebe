package rebuild

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TidyOnce is one round of Tidy.
func TidyOnce(ctx context.Context, pool *pgxpool.Pool) error { return tidy(ctx, pool) }

// BeforeLock has a runner do something between the catching up and the lock of a swap.
func BeforeLock(r *Runner, do func()) { r.beforeLock = do }
