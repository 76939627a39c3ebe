package windows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// What is kept about rules: which objects they wait for, and for how long they were asked.

// keepEvery is how often is looked after it.
const keepEvery = time.Minute

const (
	// boundSQL gives up the oldest windows of objects that are in doubt for longer than a rule makes up for.
	boundSQL = `
WITH ranked AS (
  SELECT v.account, v.object_id, v.window_start, v.window_end, row_number() OVER (PARTITION BY v.account, v.object_id ORDER BY v.window_end DESC, v.window_start DESC) AS n
  FROM unnest($4::text[], $5::text[]) AS d(account, id) JOIN effect_window_waits v ON v.account = d.account AND v.object_id = d.id
  WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3
), dropped AS (
  DELETE FROM effect_window_waits v USING ranked d
  WHERE d.n > $6 AND v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND v.account = d.account AND v.object_id = d.object_id AND v.window_start = d.window_start AND v.window_end = d.window_end
  RETURNING v.window_end
) SELECT count(*), min(window_end) FROM dropped`

	// countSQL counts for how long is asked. While nobody is there it stands still, and a clock that leaps moves it by a minute at most.
	countSQL = `
UPDATE effect_asking SET seconds = seconds + least(greatest(extract(epoch FROM clock_now() - at), 0), 60)::bigint, at = clock_now() WHERE NOT clock_now() BETWEEN at AND at + interval '30 s'`

	// askedSQL keeps that rules are asked. Of one that somebody has, it is kept by the next look.
	askedSQL = `
UPDATE effect_windows w SET asked = d.seconds FROM (
  SELECT w.rule, w.source, w.object_type, w.cron, w.time_zone, k.seconds
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS c(rule, source, type, cron, zone) JOIN sources s ON s.name = c.source
  JOIN effect_windows w ON w.rule = c.rule AND w.source = s.number AND w.object_type = c.type AND w.cron = c.cron AND w.time_zone = c.zone, effect_asking k
  WHERE w.asked <> k.seconds AND k.seconds - w.asked <= $6 FOR UPDATE OF w SKIP LOCKED) d
WHERE w.rule = d.rule AND w.source = d.source AND w.object_type = d.object_type AND w.cron = d.cron AND w.time_zone = d.time_zone`

	// anewSQL has a rule begin from now on that is still one that others were asked without.
	anewSQL = `
WITH was AS (
  SELECT w.rule, w.source, w.object_type, w.cron, w.time_zone, w.decided_at, w.window_end, k.seconds FROM effect_windows w JOIN sources s ON s.number = w.source, effect_asking k
  WHERE w.rule = $1 AND s.name = $2 AND w.object_type = $3 AND w.cron = $4 AND w.time_zone = $5 AND k.seconds - w.asked > $6 FOR UPDATE OF w
), moved AS (
  UPDATE effect_windows w SET decided_at = clock_now(), window_start = NULL, window_end = NULL, account = '', object_id = '', asked = was.seconds FROM was
  WHERE w.rule = was.rule AND w.source = was.source AND w.object_type = was.object_type AND w.cron = was.cron AND w.time_zone = was.time_zone
) SELECT decided_at, window_end FROM was`

	// goneSQL lets go of what rules wait for that others were asked without, under whatever timetable.
	goneSQL = `
WITH dropped AS (
  DELETE FROM effect_window_waits v
  WHERE NOT EXISTS (SELECT FROM effect_windows w WHERE w.rule = v.rule AND w.source = v.source AND w.object_type = v.object_type AND coalesce((SELECT seconds FROM effect_asking), 0) - w.asked <= $1)
  RETURNING v.rule, v.window_end
) SELECT rule, count(*), min(window_end) FROM dropped GROUP BY rule`

	// waitsSQL says how much rules wait for.
	waitsSQL = `SELECT rule, count(*), greatest(extract(epoch FROM clock_now() - min(window_end)), 0)::float8 FROM effect_window_waits GROUP BY rule`
)

// wait keeps that the rule is to be asked about objects when they are certain, each in as many windows as it makes up for.
func (t *turn) wait(ctx context.Context, tx pgx.Tx, accounts, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, waitSQL, t.rule.Name, t.source, t.rule.Type, t.start, t.end, accounts, ids); err != nil {
		return fmt.Errorf("keep that it waits for %d objects: %w", len(ids), err)
	}
	if err := tx.QueryRow(ctx, boundSQL, t.rule.Name, t.source, t.rule.Type, accounts, ids, t.rule.Schedule.CatchUp).Scan(&t.givenUp, &t.oldest); err != nil {
		return fmt.Errorf("give up windows of %d objects: %w", len(ids), err)
	}
	return nil
}

// keep looks after what is kept, now and then.
func (a *Asker) keep(ctx context.Context) error {
	if time.Since(a.kept) < keepEvery {
		return nil
	}
	if err := a.letGo(ctx); err != nil {
		return err
	}
	rows, err := a.Pool.Query(ctx, waitsSQL)
	if err != nil {
		return fmt.Errorf("count what rules wait for: %w", err)
	}
	all := map[string]waiting{}
	var rule string
	var w waiting
	if _, err := pgx.ForEachRow(rows, []any{&rule, &w.objects, &w.seconds}, func() error { all[rule] = w; return nil }); err != nil {
		return fmt.Errorf("count what rules wait for: %w", err)
	}
	a.Metrics.waiting(all)
	a.kept = time.Now()
	return nil
}

// out is Out as the statements take it.
func (a *Asker) out() int64 { return int64(a.Settings.Out / time.Second) }

// count counts for how long is asked, with whatever rules.
func (a *Asker) count(ctx context.Context) error {
	if _, err := a.Pool.Exec(ctx, countSQL); err != nil {
		return fmt.Errorf("keep that rules are asked: %w", err)
	}
	return nil
}

// beginAnew has rules begin from now on that were not in the configuration for long, while others were there: what should have followed then is of a time in which nobody wanted it.
func (a *Asker) beginAnew(ctx context.Context, out []*rules.Rule) error {
	for _, rule := range out {
		s := rule.Schedule
		var decided time.Time
		var under *time.Time
		err := a.Pool.QueryRow(ctx, anewSQL, rule.Name, rule.Source, rule.Type, s.Cron, s.TimeZone, a.out()).Scan(&decided, &under)
		if errors.Is(err, pgx.ErrNoRows) {
			continue // another process has
		}
		if err != nil {
			return fmt.Errorf("begin anew with rule %s: %w", rule.Name, err)
		}
		log := a.Logger.With("rule", rule.Name, "seen_to_until", decided)
		if under != nil {
			log = log.With("given_up_in_window", *under)
		}
		log.Warn("rule is back that was not in the configuration, and begins with its next window: those of meanwhile are passed over")
	}
	return nil
}

// letGo lets go of what rules wait for that are not in the configuration any more.
func (a *Asker) letGo(ctx context.Context) error {
	rows, err := a.Pool.Query(ctx, goneSQL, a.out())
	if err != nil {
		return fmt.Errorf("let go of what rules wait for that are gone: %w", err)
	}
	var rule string
	var n int64
	var oldest time.Time
	_, err = pgx.ForEachRow(rows, []any{&rule, &n, &oldest}, func() error {
		a.Logger.Warn("objects in doubt are not waited for any more: their rule is not in the configuration", "rule", rule, "windows", n, "first_end", oldest)
		return nil
	})
	if err != nil {
		return fmt.Errorf("let go of what rules wait for that are gone: %w", err)
	}
	return nil
}
