package rebuild

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/runs"
)

// pendingFailures are events that failed in the run and may still be applied to the mirror
// automatically, because they have no live outcome or a failed one. An event with a final live
// outcome is applied to the mirror only by a run that an operator requests.
type pendingFailures struct {
	// since is when they were read, cursor the rebuild's position at that time.
	since  time.Time
	cursor int64
	// tooMany says that there are more events than the limit, so that events is not set.
	tooMany bool
	events  []int64
}

const (
	pendingFailuresSQL = `
SELECT clock_now(), ARRAY(SELECT o.event_id FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead')
	AND o.event_id <= $2
  AND NOT EXISTS (SELECT FROM outcomes l WHERE l.event_id = o.event_id AND l.run = 0 AND l.status <> 'failed' OFFSET 0)
  	LIMIT $3)`

	// changesSinceSQL tells whether an operator's run may have applied events since a time, with a
	// margin for the last transaction of a cancelled run. It also lists events above a cursor that
	// have failed.
	changesSinceSQL = `
SELECT EXISTS (SELECT FROM runs r WHERE r.job NOT IN ('rebuild', 'retention') AND (r.ended_at IS NULL
	OR r.ended_at >= $2::timestamptz - interval '1 minute')),
  ARRAY(SELECT o.event_id FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $3)`
)

// findPendingFailures reads the events that must be checked again under the lock of the swap.
// Before the lock, all failures are checked.
func (w *work) findPendingFailures(ctx context.Context) error {
	d := pendingFailures{cursor: w.lease.Cursor}
	if err := w.Pool.QueryRow(ctx, pendingFailuresSQL, w.lease.Run.ID, d.cursor, w.Settings.MaxKeys+1).Scan(&d.since,
		&d.events); err != nil {
		return fmt.Errorf("find failed events of run %d that may still be applied live: %w", w.lease.Run.ID, err)
	}
	if d.tooMany = len(d.events) > w.Settings.MaxKeys; d.tooMany {
		d.events = nil
	}
	w.pendingFailures = d
	return nil
}

// stageMissedSince does the work of stageMissed for the changes since findPendingFailures. Live
// events are blocked meanwhile, and millions of events may have failed permanently, so it does not
// check all of them.
func (w *work) stageMissedSince(ctx context.Context) (runs.Status, error) {
	if w.pendingFailures.tooMany {
		return w.stageMissed(ctx, nil)
	}
	var otherRuns bool
	var more []int64
	if err := w.Pool.QueryRow(ctx, changesSinceSQL, w.lease.Run.ID, w.pendingFailures.since,
		w.pendingFailures.cursor).Scan(&otherRuns, &more); err != nil {
		return "", fmt.Errorf("find newer failures of run %d: %w", w.lease.Run.ID, err)
	}
	if otherRuns {
		return w.stageMissed(ctx, nil)
	}
	some := slices.Concat(w.pendingFailures.events, more)
	if len(some) == 0 {
		return runs.Running, nil
	}
	return w.stageMissed(ctx, some)
}
