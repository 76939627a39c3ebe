package rebuild

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// apply stages events. An event that fails although it is in the mirror must not be missing from
// the staged objects: after some attempts it ends the run.
func (w *work) apply(ctx context.Context, to apply.Target, c *apply.Chunk,
	single bool) (map[versioning.Status]int64, runs.Status, error) {
	for try := 1; ; try++ {
		if err := w.checkSource(); err != nil { // events that cannot be read here would fail forever
			return nil, "", err
		}
		applied, err := w.Applier.WithLogger(w.log).ApplyChunk(ctx, to, c, single)
		counts := applied.Outcomes
		if err != nil || counts[versioning.Failed]+counts[versioning.Dead] == 0 {
			return counts, runs.Running, err
		}
		retry, err := w.retryFailed(ctx, c.IDs, try)
		if err != nil || !retry {
			return counts, runs.Running, err
		}
		// an operator may have stopped the run
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return counts, status, err
		}
		runs.Sleep(ctx, w.Settings.RetryPause)
		single = true
	}
}

// inMirror tells that the event of an outcome o is in the mirror through a run other than o's.
// OFFSET 0 makes the planner run one lookup for each event: a join might read the whole table of
// outcomes.
const inMirror = `EXISTS (SELECT FROM outcomes l WHERE l.event_id = o.event_id AND l.run <> o.run
	AND l.status NOT IN ('failed', 'dead', 'ignored')
    AND NOT EXISTS (SELECT FROM runs r WHERE r.run = l.run AND ` + apply.UnswappedRebuild + `) OFFSET 0)`

const (
	// rejectedByProvider tells of an outcome that the provider, as it is configured now, cannot
	// apply the event. A retry does not change this.
	rejectedByProvider = `(o.status = 'dead' AND o.reason NOT LIKE 'given up after%')`

	// failedInMirrorSQL finds events that failed in a run although they are in the mirror.
	failedInMirrorSQL = `
SELECT o.event_id, o.reason, o.status = 'dead' OR o.attempts >= $3 FROM outcomes o
WHERE o.run = $1 AND o.event_id = ANY($2::bigint[]) AND o.status IN ('failed', 'dead') AND NOT ` + rejectedByProvider +
		` AND ` + inMirror + `
ORDER BY 3 DESC, 1 LIMIT 1`
)

// makeDueSQL lets failed events be tried again at once.
const makeDueSQL = `UPDATE outcomes SET due = clock_now() - interval '1 millisecond' WHERE run = $1
	AND event_id = ANY($2::bigint[]) AND status = 'failed' AND attempts < $3`

// maxTries is how often a failing event is staged. A process that ends twice during a single
// attempt does not yet show that this event is the cause.
const maxTries = 3

// retryFailed reports whether some of the events must be tried again, and makes them due. try is
// the number of the attempt that has just ended.
func (w *work) retryFailed(ctx context.Context, ids []int64, try int) (bool, error) {
	event, reason, final := int64(0), "", false
	err := w.Pool.QueryRow(ctx, failedInMirrorSQL, w.lease.Run.ID, ids, maxTries).Scan(&event, &reason, &final)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find failures of run %d: %w", w.lease.Run.ID, err)
	case final || try >= maxTries:
		return false, runs.Permanent(fmt.Errorf("event %d was applied live and fails now, so the rebuild would "+
			"lose its object: %s", event, reason))
	}
	_, err = w.Pool.Exec(ctx, makeDueSQL, w.lease.Run.ID, ids, maxTries)
	return true, err
}

const (
	// missedSQL finds events that failed in a run and were applied to the mirror since, by a retry
	// or a replay.
	missedSQL = `
SELECT o.event_id, o.status FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND NOT ` +
		rejectedByProvider + ` AND ` + inMirror + ` AND o.event_id > $2 ORDER BY o.event_id LIMIT $3`

	deadSQL = `
SELECT count(*), coalesce(min(o.event_id), 0), coalesce((array_agg(o.reason ORDER BY o.event_id))[1], '')
FROM outcomes o WHERE o.run = $1 AND o.status = 'dead' AND ` + rejectedByProvider + ` AND NOT ` + overriddenByDelete +
		` AND ` + inMirror

	// overriddenByDelete tells that an event is dead in the rebuild because a permanent delete
	// comes before it, and that the mirror applied this delete after the event.
	overriddenByDelete = `(o.reason = '` + versioning.ReasonFoundAlive + `' AND EXISTS (SELECT FROM objects m
    WHERE m.source = o.source AND m.account = o.account AND m.object_type = o.object_type AND m.object_id = o.object_id
    	AND m.version_final OFFSET 0))`
)

// stageMissed stages events that failed in the rebuild and were applied to the mirror since.
// Without them the swap would remove their changes from the mirror permanently. Events that are in
// the mirror and dead in the rebuild stop the swap, unless an operator has accepted them.
func (w *work) stageMissed(ctx context.Context) (runs.Status, error) {
	for after := int64(0); ; {
		var ids []int64
		before := map[versioning.Status]int64{}
		var status versioning.Status
		if err := postgres.ForEach(ctx, w.Pool, missedSQL, []any{w.lease.Run.ID, after, w.Settings.Chunk},
			[]any{&after, &status}, func() error {
				ids = append(ids, after)
				before[status]++
				return nil
			}); err != nil {
			return "", fmt.Errorf("find events that run %d has missed: %w", w.lease.Run.ID, err)
		}
		if len(ids) == 0 {
			break
		}
		if status, err := w.restage(ctx, ids, before); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, w.checkDead(ctx)
}

// checkDead returns an error if events are in the mirror and dead in the rebuild, unless an
// operator has accepted them.
func (w *work) checkDead(ctx context.Context) error {
	if w.params.AcceptDead {
		return nil
	}
	dead, err := countDead(ctx, w.Pool, w.lease.Run.ID)
	if err != nil || dead.Events == 0 {
		return err
	}
	return runs.Permanent(fmt.Errorf("%d events that were applied live are dead now, the first of them %d (%s), and "+
		"the mirror would lose their changes: rebuild without --yes, compare, and then swap if this is intended",
		dead.Events, dead.First, dead.Reason))
}

// restage applies events again. before counts their current outcomes.
func (w *work) restage(ctx context.Context, ids []int64, before map[versioning.Status]int64) (runs.Status, error) {
	c, err := w.Applier.ReadChunk(ctx, ids)
	if err != nil {
		return "", err
	}
	counts, status, err := w.apply(ctx, w.retryTarget(), c, w.lease.Abandoned)
	if err != nil || status != runs.Running {
		return status, err
	}
	for status, n := range before {
		w.lease.Counts[string(status)] -= n
	}
	for status, n := range counts {
		w.lease.Counts[string(status)] += n
	}
	return runs.Running, nil
}

// DeadEvents are events that are in the mirror and dead in a rebuild: the provider, as it is
// configured now, rejects them.
type DeadEvents struct {
	Events int64 `json:"events"`
	// First is the least of their ids, Reason the reason for that event.
	First  int64  `json:"first,string"`
	Reason string `json:"reason"`
}

// countDead counts the events that are in the mirror and dead in a run.
func countDead(ctx context.Context, pool *pgxpool.Pool, run int64) (d DeadEvents, err error) {
	if err := pool.QueryRow(ctx, deadSQL, run).Scan(&d.Events, &d.First, &d.Reason); err != nil {
		return d, fmt.Errorf("find dead events of run %d: %w", run, err)
	}
	return d, nil
}
