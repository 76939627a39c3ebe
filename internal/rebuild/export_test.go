package rebuild

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ClearAbandonedOnce makes one round of ClearAbandoned.
func ClearAbandonedOnce(ctx context.Context, pool *pgxpool.Pool) error {
	return clearAbandoned(ctx, pool)
}

// OnStep makes a runner call a function before each step: clear and copy; in a swap
// compare before each page, and lock, locked and written in each batch. An error ends the run
// there.
func OnStep(r *Runner, do func(name string) error) { r.onStep = do }

// AtStep makes a runner call a function before each step of a name.
func AtStep(r *Runner, step string, do func()) {
	OnStep(r, func(name string) error {
		if name == step {
			do()
		}
		return nil
	})
}

// CompareInTx compares a part of a source's objects after a key, as a swap does. It returns the
// objects that are not the same, and the key after which the next part begins; nil for the last.
func CompareInTx(ctx context.Context, tx pgx.Tx, p Params, after versioning.Key, rows, limit int) ([]Difference,
	*versioning.Key, error) {
	c := comparison{run: &runs.Run{}, params: p, after: after, rows: rows, limit: limit}
	var page Page
	end, err := c.readPartInTx(ctx, tx, &page)
	return page.Items, end, err
}

// StagedLock is the class of the locks under which staged rows are cleared.
const StagedLock = stagedLock

// FailuresSQL returns the statements that read the failures of a run.
func FailuresSQL() []string { return []string{missedSQL, deadSQL, failedSQL} }

// UnstagedSQL is the statement that finds events of live objects that are not staged.
const UnstagedSQL = unstagedSQL

// SwapStatements returns the statements of swaps, by a name.
func SwapStatements() map[string]string {
	all := map[string]string{"rule version": updateRuleVersionSQL, "unstaged": unstagedSQL,
		"unfinished": unfinishedSQL}
	for i, p := range parts() {
		all[fmt.Sprint("part ", i)] = p.sql
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
