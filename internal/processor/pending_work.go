package processor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
)

// PendingWork is the work that is pending in the log and the mirror, with the status of the
// republisher.
type PendingWork struct {
	// Unapplied are events without an outcome: they wait in the stream, or are missing there.
	Unapplied PendingCount `json:"unapplied"`
	// Failed are events that failed and are not dead. Retries are failed events whose next attempt
	// is due.
	Failed  PendingCount `json:"failed"`
	Retries PendingCount `json:"retries"`
	// Unsent are batches of changes that are not in the feed yet.
	Unsent      PendingCount      `json:"unsent"`
	Republisher RepublisherStatus `json:"republisher"`
}

// PendingCount is the amount of pending work of one kind.
type PendingCount struct {
	// Count stops at 100000: the true number may be greater.
	Count int64 `json:"count"`
	// Since is the receipt or due time of the oldest, nil if there is none. Seconds is the age of
	// the oldest by the database's clock.
	Since   *events.Instant `json:"since"`
	Seconds float64         `json:"seconds"`
}

// MaxPendingCount bounds each count. A larger number would not help the operator.
const MaxPendingCount = maxCount

// RepublisherStatus is the shared status of the republisher.
type RepublisherStatus struct {
	// Process is the process that has the lease now, "" if none.
	Process string `json:"process"`
	// AppliedUntil is the time of receipt up to which all events have an outcome.
	AppliedUntil *events.Instant `json:"applied_until"`
	// EndedAt is when a pass last reached its end, nil if none did.
	EndedAt *events.Instant `json:"ended_at"`
	// Detail says why the last pass did not reach its end.
	Detail string `json:"detail,omitzero"`
	// These counts are of the last pass that published anything.
	RepublishCounts
	// Requested are passes that operators have requested and that have not ended.
	Requested int64 `json:"requested"`
}

const (
	// unappliedSQL finds the outcome of each event separately (OFFSET 0). PostgreSQL may expect one
	// event between the bounds where there are many; a join would then compare each with each.
	unappliedSQL = `
SELECT count(*), coalesce(min(id), 0) FROM (
  SELECT e.id FROM events e WHERE e.id > $1 AND e.id < $2
    AND NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id AND o.run = 0 OFFSET 0) ORDER BY e.id LIMIT $3) e`

	// pendingCountsSQL reads only small partial indexes, each up to a bound.
	pendingCountsSQL = `
SELECT f.n, f.since, d.n, d.since, u.n, u.since, clock_now()
FROM (SELECT count(*) AS n, min(at) AS since FROM (SELECT o.at FROM outcomes o WHERE o.status = 'failed' AND o.run = 0
	ORDER BY o.due LIMIT $1) f) f,
  (SELECT count(*) AS n, min(due) AS since FROM (SELECT o.due FROM outcomes o WHERE o.status = 'failed' AND o.run = 0
  	AND o.due <= clock_now() ORDER BY o.due LIMIT $1) d) d,
  (SELECT count(*) AS n, min(created_at) AS since FROM (SELECT b.created_at FROM outbox b WHERE b.sent_at IS NULL
  	LIMIT $1) u)
  	u`

	republisherSQL = `
SELECT coalesce((SELECT c.lease_owner FROM checkpoints c WHERE c.job = $1 AND c.run = 0
	AND c.lease_until > clock_now()),
	''),
  coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0), a.ended_at, a.published_at,
  	a.missing, a.due, a.detail,
  (SELECT count(*) FROM republish_passes w WHERE w.id > 0 AND w.ended_at IS NULL)
FROM republish_passes a WHERE a.id = 0`

	cursorSQL = `SELECT coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0), clock_now()`
)

// CountUnapplied counts the events that were received at least age ago and have no outcome, up to
// limit. It begins at the republisher's cursor: every event before it has an outcome. After the
// database's clock went back, an age of more than 0 counts no new event until the clock has caught
// up.
func CountUnapplied(ctx context.Context, pool *pgxpool.Pool, age time.Duration, limit int) (p PendingCount, err error) {
	var cursor, first int64
	var now time.Time
	if err := pool.QueryRow(ctx, cursorSQL, apply.RepublisherJob).Scan(&cursor, &now); err != nil {
		return p, fmt.Errorf("read the republisher's cursor: %w", err)
	}
	end := int64(math.MaxInt64)
	if age > 0 {
		end = events.FirstID(now.Add(-age))
	}
	if err := pool.QueryRow(ctx, unappliedSQL, cursor, end, limit).Scan(&p.Count, &first); err != nil {
		return p, fmt.Errorf("count events without an outcome: %w", err)
	}
	if first > 0 {
		p.setSince(now, new(events.Time(first)))
	}
	return p, nil
}

// ReadPendingWork reads the pending work. It runs as postern_operator.
func ReadPendingWork(ctx context.Context, pool *pgxpool.Pool) (*PendingWork, error) {
	d := &PendingWork{}
	var err error
	if d.Unapplied, err = CountUnapplied(ctx, pool, 0, MaxPendingCount); err != nil {
		return nil, err
	}
	if d.Republisher, err = ReadRepublisher(ctx, pool); err != nil {
		return nil, err
	}
	var failed, retries, unsent *time.Time
	var now time.Time
	if err := pool.QueryRow(ctx, pendingCountsSQL, MaxPendingCount).Scan(&d.Failed.Count, &failed, &d.Retries.Count,
		&retries, &d.Unsent.Count, &unsent, &now); err != nil {
		return nil, fmt.Errorf("count pending work: %w", err)
	}
	d.Failed.setSince(now, failed)
	d.Retries.setSince(now, retries)
	d.Unsent.setSince(now, unsent)
	return d, nil
}

// ReadRepublisher reads the status of the republisher. It runs as postern_operator.
func ReadRepublisher(ctx context.Context, pool *pgxpool.Pool) (a RepublisherStatus, err error) {
	var cursor int64
	var ended, published *time.Time
	if err := pool.QueryRow(ctx, republisherSQL, apply.RepublisherJob).Scan(&a.Process, &cursor, &ended, &published,
		&a.Missing, &a.Due, &a.Detail, &a.Requested); err != nil {
		return a, fmt.Errorf("read the republisher's status: %w", err)
	}
	a.EndedAt, a.PublishedAt = optionalInstant(ended), optionalInstant(published)
	if cursor > 0 {
		a.AppliedUntil = &events.Instant{Time: events.Time(cursor)}
	}
	return a, nil
}

func (l *PendingCount) setSince(now time.Time, at *time.Time) {
	if l.Since = optionalInstant(at); at != nil {
		l.Seconds = max(0, now.Sub(*at).Seconds())
	}
}
