package watermarks

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// raiseEventsSQL records a run's own interval ($4 to $5), and joins it with the stored watermark
// if the two touch. If they do not touch, the stored watermark stays, because the time between is
// not complete. With $7 a later interval replaces it all the same: that run started as far back as
// the provider keeps events, so no run can complete the time between. An interval replaces the
// watermark of another scope ($8) once it has reached the same end, if it starts as early, or as
// early as the provider keeps events ($9).
const raiseEventsSQL = `
WITH own AS (
  INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope)
  	VALUES ($1, $2, 'run ' || $6::bigint, $4, $5, $6, clock_now(), $8)
  ON CONFLICT (source, account, subject) DO UPDATE SET
    since = CASE WHEN m.scope = excluded.scope THEN m.since ELSE excluded.since END,
    until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END,
    	recorded_at = excluded.recorded_at, scope = excluded.scope
  RETURNING since, until
)
INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope) SELECT $1, $2, $3,
	own.since,
	own.until, $6, clock_now(), $8 FROM own
ON CONFLICT (source, account, subject) DO UPDATE SET
  since = CASE WHEN m.scope = excluded.scope AND excluded.since <= m.until THEN least(m.since, excluded.since)
  	ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END,
  	run = excluded.run, recorded_at = excluded.recorded_at, scope = excluded.scope
WHERE CASE WHEN m.scope = excluded.scope THEN excluded.since <= m.until AND excluded.until >= m.since
	OR excluded.since > m.until AND $7 ELSE (excluded.since <= m.since OR excluded.since <= $9)
	AND excluded.until >= m.until END`

// deleteEndedWatermarksSQL deletes the intervals of ended runs.
const deleteEndedWatermarksSQL = `
DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.subject LIKE 'run %' AND NOT EXISTS (SELECT
	FROM runs r WHERE r.run = m.run AND r.ended_at IS NULL)`

// DeleteEnded deletes the intervals of ended runs of an account.
func DeleteEnded(ctx context.Context, pool *pgxpool.Pool, source int32, account string) error {
	if _, err := pool.Exec(ctx, deleteEndedWatermarksSQL, source, account); err != nil {
		return fmt.Errorf("delete the watermarks of ended runs: %w", err)
	}
	return nil
}

// RaiseEvents joins an interval of events with the run's own interval, and that with the stored
// watermark. The provider keeps no event from before oldest. startedAtOldest: the run started as
// far back as the provider keeps events.
func RaiseEvents(ctx context.Context, pool *pgxpool.Pool, i *Interval, startedAtOldest bool, oldest time.Time) error {
	if _, err := pool.Exec(ctx, raiseEventsSQL, i.Source, i.Account, i.Subject, i.Since, i.Until, i.Run,
		startedAtOldest, i.Scope, oldest); err != nil {
		return fmt.Errorf("raise watermark: %w", err)
	}
	return nil
}

// raiseObjectsSQL joins the new interval with the stored one of the same scope. If the two
// do not touch, the stored one stays, because the time between is not complete. A new interval
// replaces one of another scope if it goes back as far.
const raiseObjectsSQL = `
INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope)
SELECT $1, $2, w.subject, $5, $6, $7, clock_now(), $4 FROM unnest($3::text[]) AS w(subject)
ON CONFLICT (source, account, subject) DO UPDATE SET run = excluded.run, recorded_at = excluded.recorded_at,
	scope = excluded.scope,
  since = CASE WHEN m.scope = excluded.scope THEN least(m.since, excluded.since) ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END
WHERE m.scope = excluded.scope AND excluded.since <= m.until AND excluded.until >= m.since OR m.scope <> excluded.scope
	AND excluded.since <= m.since`

// deleteSQL deletes a watermark that another one now includes.
const deleteSQL = `DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.subject = $3`

// RaiseObjects raises watermarks of the objects of a type. The interval is that of each subject.
func RaiseObjects(ctx context.Context, tx pgx.Tx, i *Interval, subjects ...string) error {
	if _, err := tx.Exec(ctx, raiseObjectsSQL, i.Source, i.Account, subjects, i.Scope, i.Since, i.Until,
		i.Run); err != nil {
		return fmt.Errorf("raise the watermarks %q: %w", subjects, err)
	}
	return nil
}

// Delete deletes a watermark.
func Delete(ctx context.Context, tx pgx.Tx, source int32, account, subject string) error {
	if _, err := tx.Exec(ctx, deleteSQL, source, account, subject); err != nil {
		return fmt.Errorf("delete the watermark %s: %w", subject, err)
	}
	return nil
}
