package windows

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A rule with a summary sees, with each of its objects, the objects of another type that changed in
// the window and contain its id. When a window opens, its changes get an upper bound: a number of
// the feed of changes, where the next window begins. The changes are then collected in pages, by
// the object that they belong to, before the first object is evaluated. So a change belongs to one
// window, whenever it was committed and whatever dies in between.

const (
	// listedTogether is how many objects the summaries of one transaction list, after those of its
	// first object. The transaction holds a lock for each.
	listedTogether = 1000
	// purgedTogether is how many changes one statement deletes.
	purgedTogether = 5000
	purges         = 20
)

const (
	// collectSQL compares the next changes with a summary, and returns the number of the last. A
	// text that is too long for an id belongs to no object.
	collectSQL = `
WITH page AS MATERIALIZED (
  SELECT c.* FROM changes c WHERE c.number > $1 AND c.number <= $2 ORDER BY c.number LIMIT $3
), collected AS (
  INSERT INTO effect_window_changes (rule, source, object_type, window_start, window_end, account, object_id, number,
    changed_id, summary)
  SELECT $4, $5, $6, $7, $8, c.account, o.belongs_to, c.number, c.object_id, $12
  FROM page c CROSS JOIN LATERAL (
    SELECT o.state #>> string_to_array($10, '.') AS belongs_to FROM objects o WHERE o.source = c.source
      AND o.account = c.account AND o.object_type = c.object_type AND o.object_id = c.object_id LIMIT 1) o
  WHERE c.source = $5 AND c.object_type = $9 AND octet_length(o.belongs_to) <= $11
  ON CONFLICT DO NOTHING
)
SELECT CASE WHEN count(*) < $3 THEN $2 ELSE max(p.number) END FROM page p`

	// changesOf are the collected changes of an object k in a window.
	changesOf = `effect_window_changes c WHERE c.rule = $1 AND c.source = $2 AND c.object_type = $3
      AND c.account = k.account AND c.object_id = k.id AND c.window_end = k.window_end
      AND c.window_start = k.window_start AND c.summary = $8`

	// targetsOf are the objects of a page, numbered from 1.
	targetsOf = `unnest($4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[]) WITH ORDINALITY
    AS k(account, id, window_start, window_end, n)`

	// listedSQL finds the objects that summaries list, at most $9 for each and $10 in total.
	listedSQL = `
SELECT l.n, l.changed_id FROM (
  SELECT k.n, c.changed_id, row_number() OVER (ORDER BY k.n, c.number) AS up_to FROM ` + targetsOf + `
  CROSS JOIN LATERAL (SELECT c.number, c.changed_id FROM ` + changesOf + ` ORDER BY c.number LIMIT $9) c
) l WHERE l.up_to <= $10 ORDER BY l.up_to`

	// numberSQL is what can be added up: a number, or a text with a decimal number. Bounds inside
	// the pattern would make it slow.
	numberSQL = `CASE WHEN octet_length(t.value) <= 200 AND t.value ~ '^-?[0-9]+([.][0-9]+)?$'
      THEN t.value::numeric END`

	// summarySQL reads the summaries of objects as JSON, and what could not be added up. An object
	// that is uncertain or does not contain the id any more belongs to a later window.
	summarySQL = `
WITH members AS MATERIALIZED (
  SELECT k.n, c.changed_id, c.rank, o.amounts, o.fields
  FROM ` + targetsOf + ` CROSS JOIN LATERAL (
    SELECT c.changed_id, row_number() OVER (ORDER BY min(c.number)) AS rank FROM (
      SELECT c.changed_id, c.number FROM ` + changesOf + ` ORDER BY c.number LIMIT $16) c GROUP BY c.changed_id) c
  CROSS JOIN LATERAL (
    SELECT (SELECT jsonb_object_agg(f.name, o.state #> string_to_array(f.path, '.'))
        FROM unnest($12::text[], $13::text[]) AS f(name, path)) AS amounts,
      (SELECT jsonb_object_agg(f.name, CASE WHEN octet_length(v.value::text) <= $17 THEN v.value END)
        FROM unnest($14::text[], $15::text[]) AS f(name, path)
          CROSS JOIN LATERAL (SELECT o.state #> string_to_array(f.path, '.') AS value) v
        WHERE c.rank <= $9) AS fields
    FROM objects o WHERE o.source = $2 AND o.account = k.account AND o.object_type = $10 AND o.object_id = c.changed_id
      AND NOT o.deleted AND NOT o.ambiguous AND o.state #>> string_to_array($11, '.') = k.id LIMIT 1) o
), listed AS (
  SELECT m.n, count(*) AS members, max(m.rank) AS last, count(*) FILTER (WHERE m.rank <= $9) AS listed,
    jsonb_agg(coalesce(m.fields, '{}') || jsonb_build_object('id', m.changed_id) ORDER BY m.rank)
      FILTER (WHERE m.rank <= $9) AS objects
  FROM members m GROUP BY m.n
), sums AS (
  SELECT s.n, jsonb_object_agg(s.name, s.total) AS sums, min(s.name) FILTER (WHERE s.bad > 0) AS bad_name,
    sum(s.bad) AS bad
  FROM (
    SELECT t.n, t.name, coalesce(sum(t.number), 0) AS total,
      count(*) FILTER (WHERE t.number IS NULL AND t.value IS NOT NULL) AS bad
    FROM (SELECT t.*, ` + numberSQL + ` AS number FROM (
      SELECT m.n, v.key AS name, v.value FROM members m CROSS JOIN LATERAL jsonb_each_text(m.amounts) v OFFSET 0) t) t
    GROUP BY t.n, t.name) s
  GROUP BY s.n
)
SELECT k.n, jsonb_build_object('type', $10::text, 'count', coalesce(l.members, 0), 'objects', coalesce(l.objects, '[]'),
  'truncated', coalesce(l.members > l.listed, false), 'sums', coalesce(s.sums,
    (SELECT jsonb_object_agg(f.name, 0) FROM unnest($12::text[]) AS f(name)), '{}'))::text,
  coalesce(s.bad_name, ''), coalesce(s.bad, 0)::bigint, coalesce(l.last, 0)
FROM generate_series(1, cardinality($5::text[])) AS k(n) LEFT JOIN listed l ON l.n = k.n LEFT JOIN sums s ON s.n = k.n`

	// deleteChangesSQL looks up the changes of one object after the other. The table grows too fast
	// for statistics, so the planner would read all changes of the rule for a join.
	deleteChangesSQL = `
DELETE FROM effect_window_changes d WHERE d.ctid = ANY (ARRAY(
  SELECT c.ctid FROM ` + targetsOf + ` CROSS JOIN LATERAL (SELECT c.ctid FROM ` + changesOf + ` OFFSET 0) c))`

	// purgeChangesSQL deletes collected changes that no rule reads any more: their window was
	// evaluated or abandoned, or their rule is absent or has another summary, and the object that
	// they belong to is not deferred. That object may not exist.
	purgeChangesSQL = `
DELETE FROM effect_window_changes d WHERE d.ctid = ANY (ARRAY(
  SELECT c.ctid FROM effect_window_changes c
  WHERE NOT EXISTS (SELECT FROM effect_windows w WHERE w.rule = c.rule AND w.source = c.source
      AND w.object_type = c.object_type AND w.window_end = c.window_end AND w.window_start = c.window_start
      AND w.summary = c.summary
      AND coalesce((SELECT seconds FROM effect_schedule_clock), 0) - w.clock_seconds <= $2)
    AND NOT EXISTS (SELECT FROM effect_window_waits v WHERE v.rule = c.rule AND v.source = c.source
      AND v.object_type = c.object_type AND v.account = c.account AND v.object_id = c.object_id
      AND v.window_end = c.window_end AND v.window_start = c.window_start)
  LIMIT $1))`
)

// openChanges chooses the changes of a window that opens. They begin where those of the previous
// window ended, unless windows were skipped or the window is shorter than the interval. numbered is
// false if a change before the end of the window has no number yet.
func (t *pageTx) openChanges(ctx context.Context, tx pgx.Tx, start, end time.Time) (numbered bool, err error) {
	until, numbered, err := changes.NumberBefore(ctx, tx, end)
	if err != nil || !numbered {
		return false, err
	}
	previous := t.changesUntil
	if previous == nil || !t.doneUntil.Equal(start) { // not adjacent
		from, _, err := changes.NumberBefore(ctx, tx, start)
		if err != nil {
			return false, err
		}
		if previous != nil && start.Before(t.doneUntil) { // overlapping
			from = min(from, *previous)
		}
		previous = &from
	}
	until = max(until, *previous)
	t.collectedUntil, t.changesUntil = previous, &until
	return true, nil
}

// collectChanges collects the next changes of the window. collected reports that it has all.
func (t *pageTx) collectChanges(ctx context.Context, tx pgx.Tx) (collected bool, err error) {
	s := t.rule.Summary
	if s == nil {
		return true, nil
	}
	if t.changesUntil == nil { // the rule had no summary when the window opened
		numbered, err := t.openChanges(ctx, tx, *t.start, *t.end)
		if err != nil || !numbered {
			return false, err
		}
	}
	if *t.collectedUntil >= *t.changesUntil {
		return true, nil
	}
	var last int64
	if err := tx.QueryRow(ctx, collectSQL, *t.collectedUntil, *t.changesUntil, t.Settings.PageChanges, t.rule.Name,
		t.source, t.rule.Type, *t.start, *t.end, s.Type, s.By, provider.MaxNameBytes,
		s.Identity()).Scan(&last); err != nil {
		return false, fmt.Errorf("collect changes: %w", err)
	}
	t.collectedUntil, t.more = &last, true
	return false, t.advance(ctx, tx, t.doneUntil, t.start, t.end, versioning.Key{Account: t.account, ID: t.id})
}

// targetArgs returns the arguments of changesOf and targetsOf.
func (t *pageTx) targetArgs(all []target, more ...any) []any {
	accounts, ids, starts, ends := columns(all)
	return append([]any{t.rule.Name, t.source, t.rule.Type, accounts, ids, starts, ends, t.rule.Summary.Identity()},
		more...)
}

// listChanged returns the keys of the objects that the summaries of a page list. It leaves the last
// objects of the page out if their summaries would list too many.
func (t *pageTx) listChanged(ctx context.Context, tx pgx.Tx, all []target) (page []target, listed []versioning.Key,
	err error) {
	if t.rule.Summary == nil {
		return all, nil, nil
	}
	var n int
	k := versioning.Key{Source: t.source, Type: t.rule.Summary.Type}
	keys := make([][]versioning.Key, len(all))
	if err := postgres.ForEach(ctx, tx, listedSQL, t.targetArgs(all, rules.MaxListed, rules.MaxListed+listedTogether),
		[]any{&n, &k.ID}, func() error {
			k.Account = all[n-1].key.Account
			keys[n-1] = append(keys[n-1], k)
			return nil
		}); err != nil {
		return nil, nil, fmt.Errorf("list the changed objects: %w", err)
	}
	for i := range all {
		if i > 0 && len(listed)+len(keys[i]) > listedTogether {
			return all[:i], listed, nil
		}
		listed = append(listed, keys[i]...)
	}
	return all, listed, nil
}

// summarize reads the summaries of a page.
func (t *pageTx) summarize(ctx context.Context, tx pgx.Tx, all []target) error {
	s := t.rule.Summary
	if s == nil {
		return nil
	}
	sums, fields := slices.Sorted(maps.Keys(s.Sums)), slices.Sorted(maps.Keys(s.Fields))
	var n int
	var summary, badName string
	var bad, last int64
	if err := postgres.ForEach(ctx, tx, summarySQL, t.targetArgs(all, rules.MaxListed, s.Type, s.By, sums,
		paths(s.Sums, sums), fields, paths(s.Fields, fields), rules.MaxSummarized+1,
		rules.MaxListedBytes), []any{&n, &summary, &badName, &bad, &last}, func() error {
		all[n-1].summary = []byte(summary)
		switch {
		case last > rules.MaxSummarized:
			all[n-1].summaryErr = fmt.Errorf("summary: more than %d objects changed in the window: use a shorter "+
				"window", rules.MaxSummarized)
		case bad > 0:
			all[n-1].summaryErr = fmt.Errorf("summary.sums.%s: %d values of changed objects are not numbers: correct "+
				"the path %s", badName, bad, s.Sums[badName])
		}
		return nil
	}); err != nil {
		return fmt.Errorf("summarize the changed objects: %w", err)
	}
	return nil
}

// paths returns the paths of names.
func paths(of map[string]string, names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = of[name]
	}
	return all
}

// deleteChanges deletes the collected changes of objects that were evaluated.
func (t *pageTx) deleteChanges(ctx context.Context, tx pgx.Tx, done []target) error {
	if t.rule.Summary == nil || len(done) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, deleteChangesSQL, t.targetArgs(done)...); err != nil {
		return fmt.Errorf("delete the collected changes of %d objects: %w", len(done), err)
	}
	return nil
}

// purgeChanges deletes collected changes that no rule reads any more, at most purges statements at
// once.
func (a *Scheduler) purgeChanges(ctx context.Context) error {
	for range purges {
		deleted, err := a.Pool.Exec(ctx, purgeChangesSQL, purgedTogether, a.absentSeconds())
		if err != nil {
			return fmt.Errorf("delete collected changes: %w", err)
		}
		if deleted.RowsAffected() < purgedTogether {
			break
		}
	}
	return nil
}
