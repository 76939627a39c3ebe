package rebuild

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TidyOnce is one round of Tidy.
func TidyOnce(ctx context.Context, pool *pgxpool.Pool) error { return tidy(ctx, pool) }

// Step has a runner tell of each step before it is taken: clear, copy, lock, locked. An error ends it there.
func Step(r *Runner, do func(name string) error) { r.step = do }

// BeforeLock has a runner do something between the catching up and the lock of a swap.
func BeforeLock(r *Runner, do func()) {
	Step(r, func(name string) error {
		if name == "lock" {
			do()
		}
		return nil
	})
}

// StagedLock is the class of the locks under which staged rows are cleared.
const StagedLock = stagedLock
