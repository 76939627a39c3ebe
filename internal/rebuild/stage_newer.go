package rebuild

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// batch is the objects of one transaction of a swap.
type batch struct {
	keys                 []versioning.Key
	accounts, types, ids []string
	// hashes are the keys as the outcomes have them.
	hashes []int64
}

func (w *work) newBatch(items []Difference) *batch {
	b := &batch{}
	for i := range items {
		d := &items[i]
		k := versioning.Key{Source: w.params.Source, Account: d.Account, Type: d.ObjectType, ID: d.ObjectID}
		b.keys, b.hashes = append(b.keys, k), append(b.hashes, k.Hash())
		b.accounts, b.types, b.ids = append(b.accounts, k.Account), append(b.types, k.Type), append(b.ids, k.ID)
	}
	return b
}

// failedSQL finds a part of the events that failed in a run. The limit makes the planner use the
// index of unfinished outcomes.
const failedSQL = `SELECT o.event_id FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead')
	AND NOT ` + rejectedByProvider + ` AND o.event_id > $2 ORDER BY o.event_id LIMIT $3`

// findFailed finds the events that failed in the run. Until the swap ends, only events above the
// cursor can fail too.
func (w *work) findFailed(ctx context.Context) error {
	w.failed = nil
	for after := int64(0); ; {
		ids, err := postgres.Collect(ctx, w.Pool, pgx.RowTo[int64], failedSQL, w.lease.Run.ID, after,
			w.Settings.Chunk)
		if err != nil {
			return fmt.Errorf("find events that failed in run %d: %w", w.lease.Run.ID, err)
		}
		if len(ids) == 0 {
			return nil
		}
		w.failed, after = append(w.failed, ids...), ids[len(ids)-1]
	}
}

// unstagedSQL finds events that are part of the live rows of some objects, given by hashes, and not
// of the staged ones: those above the cursor ($3) of the run, and those that failed in it ($4). A
// dead event counts too, because the rule may have rejected it for the live row only. OFFSET 0
// makes the planner run one lookup by index for each object and each event.
const unstagedSQL = `
SELECT DISTINCT f.id, coalesce(o.status, '') FROM (
  SELECT l.id FROM unnest($2::bigint[]) AS k(object) CROSS JOIN LATERAL (SELECT l.event_id AS id FROM outcomes l
    WHERE l.object = k.object AND l.object <> 0 AND l.event_id > $3 AND l.run <> $1
    	AND l.status NOT IN ('failed', 'ignored')
      AND NOT EXISTS (SELECT FROM runs r WHERE r.run = l.run AND ` + apply.UnswappedRebuild + `) OFFSET 0) l
  UNION ALL
  SELECT l.id FROM unnest($4::bigint[]) AS e(id) CROSS JOIN LATERAL (SELECT l.event_id AS id FROM outcomes l
    WHERE l.event_id = e.id AND l.object = ANY($2::bigint[]) AND l.run <> $1
    	AND l.status NOT IN ('failed', 'dead', 'ignored')
      AND NOT EXISTS (SELECT FROM runs r WHERE r.run = l.run AND ` + apply.UnswappedRebuild + `) OFFSET 0) l
) f LEFT JOIN LATERAL (SELECT o.event_id, o.run, o.status, o.reason FROM outcomes o WHERE o.event_id = f.id
	AND o.run = $1 OFFSET 0) o ON true
WHERE o.status IS NULL OR o.status IN ('failed', 'dead') AND NOT ` + rejectedByProvider + ` AND ` + inMirror + `
ORDER BY 1`

// unstaged are events that are in the mirror and not staged.
type unstaged struct {
	// newer are above the run's cursor, so that its counts do not contain them.
	newer []int64
	// missed failed in the rebuild, and were applied to the mirror since. counts are their
	// outcomes.
	missed []int64
	counts map[versioning.Status]int64
}

func (w *work) findUnstaged(ctx context.Context, db events.Reader, b *batch) (*unstaged, error) {
	u := &unstaged{counts: map[versioning.Status]int64{}}
	var id int64
	var status versioning.Status
	err := postgres.ForEach(ctx, db, unstagedSQL, []any{w.lease.Run.ID, b.hashes, w.lease.Cursor, w.failed},
		[]any{&id, &status}, func() error {
			if id > w.lease.Cursor {
				u.newer = append(u.newer, id)
				return nil
			}
			u.missed = append(u.missed, id)
			u.counts[status]++
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("find events of %d objects that are not staged: %w", len(b.keys), err)
	}
	return u, nil
}

// stageNewer stages events that are part of the batch's live objects and not of the staged ones.
func (w *work) stageNewer(ctx context.Context, b *batch) (runs.Status, error) {
	u, err := w.findUnstaged(ctx, w.Pool, b)
	if err != nil {
		return "", err
	}
	if len(u.missed) > 0 {
		if status, err := w.restage(ctx, u.missed, u.counts); err != nil || status != runs.Running {
			return status, err
		}
	}
	dead := false
	for ids := range slices.Chunk(u.newer, w.Settings.Chunk) {
		c, err := w.Applier.ReadChunk(ctx, ids)
		if err != nil {
			return "", err
		}
		counts, status, err := w.apply(ctx, w.retryTarget(), c, false)
		if err != nil || status != runs.Running {
			return status, err
		}
		dead = dead || counts[versioning.Dead] > 0
	}
	if len(u.newer) > 0 {
		if err := w.checkDropped(ctx, w.lease.Cursor, slices.Max(u.newer)); err != nil {
			return "", err
		}
	}
	if dead {
		return runs.Running, w.checkDead(ctx)
	}
	return runs.Running, nil
}

// errNotStaged says that an event cannot be staged under the locks of its object.
var errNotStaged = errors.New("an event of the objects is not staged")

// unfinishedSQL tells whether events failed or are dead in a run.
const unfinishedSQL = `SELECT EXISTS (SELECT FROM outcomes o WHERE o.event_id = ANY($2::bigint[]) AND o.run = $1
	AND o.status IN ('failed', 'dead'))`

// stageLocked is stageNewer in the transaction that holds the locks of the objects. Events that
// were applied live since, and that can be applied at once, are staged here. Errors: errNotStaged
// if there are others.
func (w *work) stageLocked(ctx context.Context, tx pgx.Tx, b *batch) error {
	u, err := w.findUnstaged(ctx, tx, b)
	if err != nil || len(u.newer)+len(u.missed) == 0 {
		return err
	}
	if len(u.missed) > 0 {
		return errNotStaged
	}
	to := w.retryTarget()
	to.Staging.Guard = nil // the transaction ends with the run's lease
	if err := w.Applier.ApplyInTx(ctx, tx, to, u.newer); errors.Is(err, apply.ErrLocked) {
		return errNotStaged // stageNewer waits without locks
	} else if err != nil {
		return fmt.Errorf("stage %d events: %w", len(u.newer), err)
	}
	var unfinished bool
	err = tx.QueryRow(ctx, unfinishedSQL, w.lease.Run.ID, u.newer).Scan(&unfinished)
	if err == nil && unfinished {
		return errNotStaged
	}
	return err
}

// retryTarget is the target for events that may have failed in the run before.
func (w *work) retryTarget() apply.Target {
	to := w.target()
	to.RetryRun = w.lease.Run.ID
	return to
}
