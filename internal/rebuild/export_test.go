package rebuild

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
)

// TidyOnce is one round of Tidy.
func TidyOnce(ctx context.Context, pool *pgxpool.Pool) error { return tidy(ctx, pool) }

// Step has a runner tell of each step before it is taken: clear, copy, compare, lock, locked. An error ends it there.
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

// WholeSQL looks at all that has failed in a run.
func WholeSQL() []string { return []string{missedSQL, deadSQL} }

// Looks says whether a statement looks for what has failed in a run.
func Looks(sql string) bool {
	return slices.Contains(append(WholeSQL(), missedAmongSQL, deadAmongSQL, doubtSQL, sinceSQL), sql)
}
