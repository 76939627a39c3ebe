package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	// maxCounted bounds the counts, and the rows that are read for them.
	maxCounted = 10_000
	// maxIDs is how many ids a notification lists.
	maxIDs = 5
	// leaseMargin is how much longer than the longest call a lease lasts.
	leaseMargin = 30 * time.Second
)

const (
	// insertSQL inserts the rows of a recipient. It reports conditions that already exist, but no
	// run that failed earlier.
	insertSQL = `INSERT INTO notifications (name, condition, watermark) SELECT $1, a, clock_now()
		FROM unnest($2::text[]) a
		ON CONFLICT DO NOTHING`

	// dueSQL locks the rows that may be reported now. It skips rows that another process has
	// locked. A time outside of the possible range comes from a clock that was ahead, and delays
	// nothing.
	dueSQL = `
SELECT condition, sequence, coalesce(since, clock_now()), since IS NOT NULL, notified_at IS NULL
	OR notified_at NOT BETWEEN clock_now() - $3::interval AND clock_now(), watermark, clock_now(), seed
		FROM notifications
WHERE name = $1 AND condition = ANY($2::text[]) AND (lease_until IS NULL OR lease_until NOT BETWEEN clock_now()
	AND clock_now() + $4::interval) ORDER BY condition FOR UPDATE SKIP LOCKED`

	// leaseSQL leases notifications.
	leaseSQL = `UPDATE notifications SET lease_until = clock_now() + $3::interval WHERE name = $1
		AND condition = ANY($2::text[])`

	// advanceSQL advances the watermark after a check that began at $4 found no failed run, so that
	// the next check reads few rows. It writes seldom. After the clock was ahead, it moves the
	// watermark back, and runs in between are reported again.
	advanceSQL = `
UPDATE notifications SET watermark = $4::timestamptz - $3::interval WHERE name = $1 AND condition = $2
	AND (watermark < $4::timestamptz - interval '10 minutes' - $3::interval OR watermark > $4::timestamptz)`

	// sentSQL records a sent notification.
	sentSQL = `
UPDATE notifications SET sequence = sequence + 1, notified_at = clock_now(), since = CASE
	WHEN $4 THEN coalesce(since, $5) END,
	watermark = greatest(watermark, $6), attempts = 0, lease_until = NULL, failure = ''
WHERE name = $1 AND condition = $2 AND sequence = $3`

	// failedSQL records a failed notification and the time of the next try.
	failedSQL = `
UPDATE notifications SET attempts = attempts + 1, failure = $4, lease_until = clock_now() + least($5::interval *
	power(2, least(attempts, 20)), $6::interval)
WHERE name = $1 AND condition = $2 AND sequence = $3`
)

// The queries for conditions and events. Each reads a bounded number of rows through small partial
// indexes, and returns the count and the first ids. A condition also returns whether there may be
// more. A future time, from a clock that was ahead, counts as long past.
const (
	unknownSQL = `
SELECT count(*), coalesce((array_agg(u.effect ORDER BY u.effect))[1:$2], '{}'), count(*) >= $1
FROM (SELECT s.effect FROM ` + effects.UnknownStepsSQL + ` AND coalesce(s.first_attempt_at, s.reserved_at) NOT BETWEEN
	clock_now() -
	$3::interval AND clock_now() GROUP BY s.effect ORDER BY s.effect LIMIT $1) u`

	reviewSQL = `
SELECT count(*), coalesce((array_agg(n.effect ORDER BY n.effect))[1:$2], '{}'), coalesce(bool_or(n.more), false) FROM (
  SELECT e.effect, e.seen >= $1 AS more FROM (SELECT r.*, count(*) OVER () AS seen FROM (SELECT effect, updated_at
  	FROM effects WHERE state = 'needs_review' ORDER BY effect LIMIT $1) r) e
  WHERE e.updated_at NOT BETWEEN clock_now() - $3::interval AND clock_now()
  UNION ALL SELECT s.effect, s.more FROM ` + runner.DetachedSQL + ` s WHERE s.since NOT BETWEEN clock_now() -
	$3::interval
	AND clock_now()
) n`

	approvalSQL = `
SELECT count(*), coalesce((array_agg(e.effect ORDER BY e.effect))[1:$2], '{}'), coalesce(bool_or(e.seen >= $1), false)
FROM (SELECT w.*, count(*) OVER () AS seen FROM (SELECT effect, planned_at FROM effects
	WHERE state = 'awaiting_approval'
	ORDER BY effect LIMIT $1) w) e WHERE e.planned_at NOT BETWEEN clock_now() - $3::interval AND clock_now()`

	deadSQL = `
SELECT count(*), coalesce((array_agg(o.event_id ORDER BY o.event_id))[1:$2], '{}'), count(*) >= $1
FROM (SELECT o.event_id FROM ` + apply.DeadEvents + ` ORDER BY o.event_id LIMIT $1) o`

	feedsSQL = `SELECT count(*), '{}'::bigint[], false FROM (` + changes.StalledSQL + ` LIMIT $1) c WHERE $2::int > 0`

	runsSQL = `
SELECT count(*), coalesce((array_agg(r.run ORDER BY r.run))[1:$2], '{}'), coalesce(max(r.at), $4)
FROM (SELECT f.* FROM (
    SELECT run, ended_at AS at FROM runs WHERE ended_at > $4 AND status = 'failed'
    UNION ALL
    SELECT run, updated_at FROM runs WHERE ended_at IS NULL AND updated_at > $4 AND status = 'paused'
      AND job = 'rebuild' AND counts ? 'swapped' AND detail <> '') f
  WHERE f.at <= clock_now() - $3::interval ORDER BY f.at LIMIT $1) r`
)

// leaseDue leases the notifications that are due, so that no other process sends them.
func (w *Watcher) leaseDue(ctx context.Context, r *Recipient) (due []notification, err error) {
	err = postgres.InTx(ctx, w.Pool, "lease notifications", w.Settings.Timeout,
		func(ctx context.Context, tx pgx.Tx) error {
			due = nil
			if _, err := tx.Exec(ctx, insertSQL, r.Name, r.Conditions); err != nil {
				return fmt.Errorf("insert notifications: %w", err)
			}
			rows, err := tx.Query(ctx, dueSQL, r.Name, r.Conditions, r.Interval, w.Settings.MaxWait+
				leaseTime(r, len(topics)))
			if err != nil {
				return fmt.Errorf("read notifications: %w", err)
			}
			candidates, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t notification, err error) {
				var name string
				err = row.Scan(&name, &t.sequence, &t.since, &t.active, &t.mayRepeat, &t.watermark, &t.at, &t.seed)
				t.topic = topicOf(name)
				return t, err
			})
			if err != nil {
				return fmt.Errorf("read notifications: %w", err)
			}
			var leased []string
			for i := range candidates {
				if err := w.evaluate(ctx, tx, r, &candidates[i]); err != nil {
					return err
				}
				if candidates[i].phase != phaseNone {
					candidates[i].id = noticeID(&candidates[i])
					leased, due = append(leased, candidates[i].name), append(due, candidates[i])
				}
			}
			if len(leased) == 0 {
				return nil
			}
			if _, err := tx.Exec(ctx, leaseSQL, r.Name, leased, leaseTime(r, len(leased))); err != nil {
				return fmt.Errorf("lease notifications: %w", err)
			}
			return nil
		})
	return due, err
}

// leaseTime returns the length of a lease of several notifications, which are sent one after the
// other.
func leaseTime(r *Recipient, n int) time.Duration {
	return time.Duration(n)*r.Destination.Timeout + leaseMargin
}

// evaluate reads the current state and decides whether to notify.
func (w *Watcher) evaluate(ctx context.Context, tx pgx.Tx, r *Recipient, t *notification) error {
	if !t.isCondition {
		if err := tx.QueryRow(ctx, t.sql, maxCounted, maxIDs, w.Settings.RunDelay, t.watermark).Scan(&t.count, &t.ids,
			&t.newWatermark); err != nil {
			return fmt.Errorf("check %s: %w", t.name, err)
		}
		t.atLeast = t.count >= maxCounted
		switch {
		case t.count > 0 && t.mayRepeat:
			t.phase = phaseHappened
		case t.count == 0:
			if _, err := tx.Exec(ctx, advanceSQL, r.Name, t.name, w.Settings.RunDelay, t.at); err != nil {
				return fmt.Errorf("check %s: %w", t.name, err)
			}
		}
		return nil
	}
	t.newWatermark = t.watermark
	bounds := []any{maxCounted, maxIDs}
	if t.isDelayed {
		bounds = append(bounds, r.Delay)
	}
	if err := tx.QueryRow(ctx, t.sql, bounds...).Scan(&t.count, &t.ids, &t.atLeast); err != nil {
		return fmt.Errorf("check %s: %w", t.name, err)
	}
	switch {
	case t.count == 0 && t.active:
		t.phase = phaseOver
	case t.count == 0 || !t.mayRepeat:
	case t.active:
		t.phase = phaseLasts
	default:
		t.phase = phaseBegan
	}
	return nil
}

// recordResult records the result of a notification, also while the process stops.
func (w *Watcher) recordResult(ctx context.Context, r *Recipient, t *notification, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.Settings.Timeout)
	defer cancel()
	if failure != nil {
		if _, err := w.Pool.Exec(ctx, failedSQL, r.Name, t.name, t.sequence, failure.Error(), w.Settings.FirstWait,
			w.Settings.MaxWait); err != nil {
			return fmt.Errorf("record that the notification about %s failed: %w", t.name, err)
		}
		return nil
	}
	if _, err := w.Pool.Exec(ctx, sentSQL, r.Name, t.name, t.sequence, t.phase == phaseBegan || t.phase == phaseLasts,
		t.since, t.newWatermark); err != nil {
		return fmt.Errorf("record that the notification about %s was sent: %w", t.name, err)
	}
	return nil
}
