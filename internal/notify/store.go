package notify

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
)

const (
	// countMost bounds what is counted, and what is read for it.
	countMost = 10_000
	// idsMost is how many ids are told.
	idsMost = 5
	// tellWithin is how much longer than a call may take a notification stays taken.
	tellWithin = 30 * time.Second
)

const (
	// enterSQL makes the rows of somebody who is told. What happened before it is not told, but what lasts is.
	enterSQL = `INSERT INTO notifications (name, about, mark) SELECT $1, a, clock_now() FROM unnest($2::text[]) a ON CONFLICT DO NOTHING`

	// dueSQL locks what may be told now. What another process is looking at is passed over. A time beyond what can be is of a clock that was ahead, and holds up nothing.
	dueSQL = `
SELECT about, turn, coalesce(since, clock_now()), since IS NOT NULL, told_at IS NULL OR told_at NOT BETWEEN clock_now() - $3::interval AND clock_now(), mark, clock_now(), seed FROM notifications
WHERE name = $1 AND about = ANY($2::text[]) AND (taken_until IS NULL OR taken_until NOT BETWEEN clock_now() AND clock_now() + $4::interval) ORDER BY about FOR UPDATE SKIP LOCKED`

	// takeSQL takes what is told.
	takeSQL = `UPDATE notifications SET taken_until = clock_now() + $3::interval WHERE name = $1 AND about = ANY($2::text[])`

	// moveSQL has the mark follow to where a look that began at $4 has seen that no run had failed, so that few are looked at; seldom, since each is a write. It comes back from where a clock was ahead: what had ended there is told once more.
	moveSQL = `
UPDATE notifications SET mark = $4::timestamptz - $3::interval WHERE name = $1 AND about = $2 AND (mark < $4::timestamptz - interval '10 minutes' - $3::interval OR mark > $4::timestamptz)`

	// toldSQL notes what was told.
	toldSQL = `
UPDATE notifications SET turn = turn + 1, told_at = clock_now(), since = CASE WHEN $4 THEN coalesce(since, $5) END, mark = greatest(mark, $6), attempts = 0, taken_until = NULL, trouble = ''
WHERE name = $1 AND about = $2 AND turn = $3`

	// failedSQL notes what could not be told, and when that is tried again.
	failedSQL = `
UPDATE notifications SET attempts = attempts + 1, trouble = $4, taken_until = clock_now() + least($5::interval * power(2, least(attempts, 20)), $6::interval)
WHERE name = $1 AND about = $2 AND turn = $3`
)

// What lasts, and what happened, each up to a bound, by small partial indexes: how many there are, the first, and of what lasts whether there may be more. What is of a time that is not to be yet, by a clock that was ahead, has lasted.
const (
	unknownSQL = `
SELECT count(*), coalesce((array_agg(u.effect ORDER BY u.effect))[1:$2], '{}'), count(*) >= $1
FROM (SELECT s.effect FROM ` + runner.Doubts + ` AND coalesce(s.known_since, s.reserved_at) NOT BETWEEN clock_now() - $3::interval AND clock_now() GROUP BY s.effect ORDER BY s.effect LIMIT $1) u`

	reviewSQL = `
SELECT count(*), coalesce((array_agg(n.effect ORDER BY n.effect))[1:$2], '{}'), coalesce(bool_or(n.more), false) FROM (
  SELECT e.effect, e.seen >= $1 AS more FROM (SELECT r.*, count(*) OVER () AS seen FROM (SELECT effect, updated_at FROM effects WHERE state = 'review' ORDER BY effect LIMIT $1) r) e
  WHERE e.updated_at NOT BETWEEN clock_now() - $3::interval AND clock_now()
  UNION ALL SELECT s.effect, s.more FROM ` + runner.Strays + ` s WHERE s.since NOT BETWEEN clock_now() - $3::interval AND clock_now()
) n`

	waitingSQL = `
SELECT count(*), coalesce((array_agg(e.effect ORDER BY e.effect))[1:$2], '{}'), coalesce(bool_or(e.seen >= $1), false)
FROM (SELECT w.*, count(*) OVER () AS seen FROM (SELECT effect, planned_at FROM effects WHERE state = 'waiting' ORDER BY effect LIMIT $1) w) e WHERE e.planned_at NOT BETWEEN clock_now() - $3::interval AND clock_now()`

	deadSQL = `
SELECT count(*), coalesce((array_agg(o.event_id ORDER BY o.event_id))[1:$2], '{}'), count(*) >= $1
FROM (SELECT o.event_id FROM ` + processor.DeadEvents + ` ORDER BY o.event_id LIMIT $1) o`

	runsSQL = `
SELECT count(*), coalesce((array_agg(r.run ORDER BY r.run))[1:$2], '{}'), coalesce(max(r.ended_at), $4)
FROM (SELECT run, ended_at FROM runs WHERE ended_at > $4 AND ended_at <= clock_now() - $3::interval AND status = 'failed' ORDER BY ended_at LIMIT $1) r`
)

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{enterSQL, dueSQL, takeSQL, moveSQL, toldSQL, failedSQL, unknownSQL, reviewSQL, waitingSQL, deadSQL, runsSQL}
}

// take finds what is to be told, and takes it, so that no other process tells it meanwhile.
func (w *Watcher) take(ctx context.Context, r *Recipient) (all []tell, err error) {
	err = postgres.InTx(ctx, w.Pool, "look for what is to be told", w.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		all = nil
		if _, err := tx.Exec(ctx, enterSQL, r.Name, r.About); err != nil {
			return fmt.Errorf("enter notifications: %w", err)
		}
		rows, err := tx.Query(ctx, dueSQL, r.Name, r.About, r.Every, w.Settings.LongestWait+takenFor(r, len(kinds)))
		if err != nil {
			return fmt.Errorf("read notifications: %w", err)
		}
		due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tell, err error) {
			var about string
			err = row.Scan(&about, &t.turn, &t.since, &t.lasted, &t.again, &t.mark, &t.at, &t.seed)
			t.kind = kindOf(about)
			return t, err
		})
		if err != nil {
			return fmt.Errorf("read notifications: %w", err)
		}
		var taken []string
		for i := range due {
			if err := w.measure(ctx, tx, r, &due[i]); err != nil {
				return err
			}
			if due[i].phase != phaseNone {
				due[i].id = noticeID(&due[i])
				taken, all = append(taken, due[i].about), append(all, due[i])
			}
		}
		if len(taken) == 0 {
			return nil
		}
		if _, err := tx.Exec(ctx, takeSQL, r.Name, taken, takenFor(r, len(taken))); err != nil {
			return fmt.Errorf("take notifications: %w", err)
		}
		return nil
	})
	return all, err
}

// takenFor is for how long so many are taken, which are told one after the other.
func takenFor(r *Recipient, n int) time.Duration {
	return time.Duration(n)*r.Reach.Timeout + tellWithin
}

// measure finds out how things are, and whether that is told.
func (w *Watcher) measure(ctx context.Context, tx pgx.Tx, r *Recipient, t *tell) error {
	if !t.lasts {
		if err := tx.QueryRow(ctx, t.sql, countMost, idsMost, w.Settings.Settled, t.mark).Scan(&t.count, &t.ids, &t.newMark); err != nil {
			return fmt.Errorf("look for %s: %w", t.about, err)
		}
		t.more = t.count >= countMost
		switch {
		case t.count > 0 && t.again:
			t.phase = phaseHappened
		case t.count == 0:
			if _, err := tx.Exec(ctx, moveSQL, r.Name, t.about, w.Settings.Settled, t.at); err != nil {
				return fmt.Errorf("look for %s: %w", t.about, err)
			}
		}
		return nil
	}
	t.newMark = t.mark
	bounds := []any{countMost, idsMost}
	if t.aged {
		bounds = append(bounds, r.After)
	}
	if err := tx.QueryRow(ctx, t.sql, bounds...).Scan(&t.count, &t.ids, &t.more); err != nil {
		return fmt.Errorf("look for %s: %w", t.about, err)
	}
	switch {
	case t.count == 0 && t.lasted:
		t.phase = phaseOver
	case t.count == 0 || !t.again:
	case t.lasted:
		t.phase = phaseLasts
	default:
		t.phase = phaseBegan
	}
	return nil
}

// note notes what came of telling, also where the process is ending.
func (w *Watcher) note(ctx context.Context, r *Recipient, t *tell, trouble error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.Settings.Within)
	defer cancel()
	if trouble != nil {
		if _, err := w.Pool.Exec(ctx, failedSQL, r.Name, t.about, t.turn, trouble.Error(), w.Settings.FirstWait, w.Settings.LongestWait); err != nil {
			return fmt.Errorf("note that %s was not told: %w", t.about, err)
		}
		return nil
	}
	if _, err := w.Pool.Exec(ctx, toldSQL, r.Name, t.about, t.turn, t.phase == phaseBegan || t.phase == phaseLasts, t.since, t.newMark); err != nil {
		return fmt.Errorf("note that %s was told: %w", t.about, err)
	}
	return nil
}
