package windows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
)

// This file maintains the stored state of rules: their deferred objects, their collected changes,
// and for how long other rules were evaluated without them.

// maintainEvery is the interval of the maintenance.
const maintainEvery = time.Minute

const (
	// limitDeferredSQL deletes the oldest windows of uncertain objects that have more windows than
	// the rule's catch_up.
	limitDeferredSQL = `
WITH ranked AS (
  SELECT v.account, v.object_id, v.window_start, v.window_end, row_number() OVER (PARTITION BY v.account, v.object_id
  	ORDER BY v.window_end DESC, v.window_start DESC) AS n
  FROM unnest($4::text[], $5::text[]) AS d(account, id) JOIN effect_window_waits v ON v.account = d.account
  	AND v.object_id = d.id
  WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3
), dropped AS (
  DELETE FROM effect_window_waits v USING ranked d
  WHERE d.n > $6 AND v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND v.account = d.account
  	AND v.object_id = d.object_id AND v.window_start = d.window_start AND v.window_end = d.window_end
  RETURNING v.window_end
) SELECT count(*), min(window_end) FROM dropped`

	// advanceClockSQL advances the clock that counts for how long schedules are evaluated. It
	// stands still while no process runs. A jump of the database's clock advances it by a minute at
	// most.
	advanceClockSQL = `
UPDATE effect_schedule_clock SET seconds = seconds + least(greatest(extract(epoch FROM clock_now() - counted_at), 0),
	60)::bigint,
	counted_at = clock_now() WHERE NOT clock_now() BETWEEN counted_at AND counted_at + interval '30 s'`

	// markEvaluatedSQL records that rules are evaluated. It skips a rule that another process has
	// locked; the next tick records it.
	markEvaluatedSQL = `
UPDATE effect_windows w SET clock_seconds = d.seconds FROM (
  SELECT w.rule, w.source, w.object_type, w.cron, w.time_zone, k.seconds
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS c(rule, source, type, cron, zone)
  	JOIN sources s ON s.name = c.source
  JOIN effect_windows w ON w.rule = c.rule AND w.source = s.number AND w.object_type = c.type AND w.cron = c.cron
  	AND w.time_zone = c.zone, effect_schedule_clock k
  WHERE w.clock_seconds <> k.seconds AND k.seconds - w.clock_seconds <= $6 FOR UPDATE OF w SKIP LOCKED) d
WHERE w.rule = d.rule AND w.source = d.source AND w.object_type = d.object_type AND w.cron = d.cron
	AND w.time_zone = d.time_zone`

	// restartSQL makes a rule start at the current time if it was absent from the configuration for
	// long.
	restartSQL = `
WITH was AS (
  SELECT w.rule, w.source, w.object_type, w.cron, w.time_zone, w.decided_at, w.window_end, k.seconds
  	FROM effect_windows w JOIN sources s ON s.number = w.source, effect_schedule_clock k
  WHERE w.rule = $1 AND s.name = $2 AND w.object_type = $3 AND w.cron = $4 AND w.time_zone = $5
  	AND k.seconds - w.clock_seconds > $6 FOR UPDATE OF w
), moved AS (
  UPDATE effect_windows w SET decided_at = clock_now(), window_start = NULL, window_end = NULL, account = '',
  	object_id = '', collected_until = NULL, changes_until = NULL, summary = '', clock_seconds = was.seconds FROM was
  WHERE w.rule = was.rule AND w.source = was.source AND w.object_type = was.object_type AND w.cron = was.cron
  	AND w.time_zone = was.time_zone
) SELECT decided_at, window_end FROM was`

	// deleteDetachedSQL deletes the deferred objects of rules that were absent for long, in any
	// version of their schedule.
	deleteDetachedSQL = `
WITH dropped AS (
  DELETE FROM effect_window_waits v
  WHERE NOT EXISTS (SELECT FROM effect_windows w WHERE w.rule = v.rule AND w.source = v.source
  	AND w.object_type = v.object_type AND coalesce((SELECT seconds FROM effect_schedule_clock), 0) - w.clock_seconds
  		<= $1)
  RETURNING v.rule, v.window_end
) SELECT rule, count(*), min(window_end) FROM dropped GROUP BY rule`

	// countDeferredSQL counts the deferred objects of each rule.
	countDeferredSQL = `SELECT rule, count(*), greatest(extract(epoch FROM clock_now() - min(window_end)), 0)::float8
		FROM effect_window_waits GROUP BY rule`
)

// deferObjects stores that the rule has to be evaluated for objects when they are certain. Each
// object keeps at most catch_up windows.
func (t *pageTx) deferObjects(ctx context.Context, tx pgx.Tx, accounts, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, deferSQL, t.rule.Name, t.source, t.rule.Type, t.start, t.end, accounts, ids); err != nil {
		return fmt.Errorf("defer %d objects: %w", len(ids), err)
	}
	if err := tx.QueryRow(ctx, limitDeferredSQL, t.rule.Name, t.source, t.rule.Type, accounts, ids,
		t.rule.Schedule.CatchUp).Scan(&t.dropped, &t.oldestDropped); err != nil {
		return fmt.Errorf("drop windows of %d deferred objects: %w", len(ids), err)
	}
	return nil
}

// maintain maintains the stored state once per interval.
func (a *Scheduler) maintain(ctx context.Context) error {
	if time.Since(a.maintainedAt) < maintainEvery {
		return nil
	}
	if err := a.deleteDetached(ctx); err != nil {
		return err
	}
	if err := a.purgeChanges(ctx); err != nil { // it delays no rule
		a.Logger.Warn("collected changes of evaluated windows are kept", "error", err)
	}
	all := map[string]deferredCount{}
	var rule string
	var w deferredCount
	if err := postgres.ForEach(ctx, a.Pool, countDeferredSQL, nil, []any{&rule, &w.objects, &w.seconds},
		func() error { all[rule] = w; return nil }); err != nil {
		return fmt.Errorf("count deferred objects: %w", err)
	}
	a.Metrics.setDeferred(all)
	a.maintainedAt = time.Now()
	return nil
}

// absentSeconds returns AbsentAfter in seconds.
func (a *Scheduler) absentSeconds() int64 { return int64(a.Settings.AbsentAfter / time.Second) }

// advanceClock counts for how long schedules are evaluated, with any rules.
func (a *Scheduler) advanceClock(ctx context.Context) error {
	if _, err := a.Pool.Exec(ctx, advanceClockSQL); err != nil {
		return fmt.Errorf("advance the clock of schedules: %w", err)
	}
	return nil
}

// restart makes rules start at the current time that were absent from the configuration for long
// while others were evaluated. The operator did not want effects for the windows in between.
func (a *Scheduler) restart(ctx context.Context, absent []*rules.Rule) error {
	for _, rule := range absent {
		s := rule.Schedule
		var doneUntil time.Time
		var openWindowEnd *time.Time
		err := a.Pool.QueryRow(ctx, restartSQL, rule.Name, rule.Source, rule.Type, s.Cron, s.TimeZone,
			a.absentSeconds()).Scan(&doneUntil, &openWindowEnd)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // another process has restarted it
		}
		if err != nil {
			return fmt.Errorf("restart rule %s: %w", rule.Name, err)
		}
		log := a.Logger.With("rule", rule.Name, "decided_until", doneUntil)
		if openWindowEnd != nil {
			log = log.With("abandoned_window_end", *openWindowEnd)
		}
		log.Warn("the rule is back in the configuration and starts with its next window; the windows in between are " +
			"skipped")
	}
	return nil
}

// deleteDetached deletes the deferred objects of rules that are not in the configuration any more.
func (a *Scheduler) deleteDetached(ctx context.Context) error {
	var rule string
	var n int64
	var oldest time.Time
	err := postgres.ForEach(ctx, a.Pool, deleteDetachedSQL, []any{a.absentSeconds()}, []any{&rule, &n, &oldest},
		func() error {
			a.Logger.Warn("deferred objects deleted: their rule is not in the configuration any more", "rule",
				rule, "windows", n, "first_end", oldest)
			return nil
		})
	if err != nil {
		return fmt.Errorf("delete deferred objects of removed rules: %w", err)
	}
	return nil
}
