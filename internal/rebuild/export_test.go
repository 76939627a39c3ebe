package rebuild

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/runs"
)

// ClearAbandonedOnce makes one round of ClearAbandoned.
func ClearAbandonedOnce(ctx context.Context, pool *pgxpool.Pool) error {
	return clearAbandoned(ctx, pool)
}

// OnStep makes a runner call a function before each step: clear, copy, compare, lock, locked. An
// error ends the run there.
func OnStep(r *Runner, do func(name string) error) { r.onStep = do }

// BeforeLock makes a runner call a function between the catch-up and the lock of a swap.
func BeforeLock(r *Runner, do func()) {
	OnStep(r, func(name string) error {
		if name == "lock" {
			do()
		}
		return nil
	})
}

// StagedLock is the class of the locks under which staged rows are cleared.
const StagedLock = stagedLock

// FailuresSQL returns the statements that read the failures of a run.
func FailuresSQL() []string { return []string{missedSQL, deadSQL} }

// SwapStatements returns the statements of swaps, by a name.
func SwapStatements() map[string]string {
	all := map[string]string{}
	for i, p := range parts() {
		all[fmt.Sprint("all rows ", i)], all[fmt.Sprint("by keys ", i)] = p.allRows, p.byKeys
	}
	return all
}

// Request inserts a rebuild into the table of runs; a running processor executes it. It returns the
// run's number. Errors: events.ErrInvalid if the source has an open rebuild.
func Request(ctx context.Context, pool *pgxpool.Pool, o *Params, actor, reason string, expected int64) (run int64,
	err error) {
	run, err = runs.Create(ctx, pool, runs.Request{Job: Job, Params: o, Actor: actor, Reason: reason,
		Expected: expected})
	return run, ExplainConflict(ctx, pool, o, err)
}
