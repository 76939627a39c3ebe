package rebuild

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/runs"
)

// doubts are what has failed in the run and may enter the mirror by itself, since it has no outcome live or has failed there too. What is final live
// enters only by a run that a person has asked for.
type doubts struct {
	// since is when they were looked for, and cursor how far the rebuild had read.
	since  time.Time
	cursor int64
	// over: they are too many to be kept.
	over   bool
	events []int64
}

const (
	doubtSQL = `
SELECT clock_now(), ARRAY(SELECT o.event_id FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id <= $2
  AND NOT EXISTS (SELECT FROM outcomes l WHERE l.event_id = o.event_id AND l.run = 0 AND l.status <> 'failed' OFFSET 0) LIMIT $3)`

	// sinceSQL says whether a person's run may have applied anything since a time, with a margin for the last transaction of one that was cancelled, and what has
	// failed above a cursor.
	sinceSQL = `
SELECT EXISTS (SELECT FROM runs r WHERE r.job NOT IN ('rebuild', 'retention') AND (r.ended_at IS NULL OR r.ended_at >= $2::timestamptz - interval '1 minute')),
  ARRAY(SELECT o.event_id FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $3)`
)

// doubt notes what must be looked at again under the lock of the swap; before it, all is.
func (w *work) doubt(ctx context.Context) error {
	d := doubts{cursor: w.hold.Cursor}
	if err := w.Pool.QueryRow(ctx, doubtSQL, w.hold.Run.Run, d.cursor, w.Settings.Keys+1).Scan(&d.since, &d.events); err != nil {
		return fmt.Errorf("look for what may enter the mirror beside run %d: %w", w.hold.Run.Run, err)
	}
	if d.over = len(d.events) > w.Settings.Keys; d.over {
		d.events = nil
	}
	w.doubtful = d
	return nil
}

// missedSince is missed of what has changed since doubt: live events are held up, and millions may have failed in the run for good.
func (w *work) missedSince(ctx context.Context) (runs.Status, error) {
	if w.doubtful.over {
		return w.missed(ctx, nil)
	}
	var asked bool
	var more []int64
	if err := w.Pool.QueryRow(ctx, sinceSQL, w.hold.Run.Run, w.doubtful.since, w.doubtful.cursor).Scan(&asked, &more); err != nil {
		return "", fmt.Errorf("look for what has failed in run %d since: %w", w.hold.Run.Run, err)
	}
	if asked {
		return w.missed(ctx, nil)
	}
	some := slices.Concat(w.doubtful.events, more)
	if len(some) == 0 {
		return runs.Running, nil
	}
	return w.missed(ctx, some)
}
