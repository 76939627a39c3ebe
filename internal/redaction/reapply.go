package redaction

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	redactedEventsSQL = `SELECT event FROM redacted_events WHERE run = $1 AND event > $2 ORDER BY event LIMIT $3`

	// sameVersionSQL finds the events that have the same version as a cleared row. Their states may
	// still be shown.
	sameVersionSQL = `
SELECT DISTINCT c.event_id FROM (SELECT DISTINCT o.source, o.account, o.object_type, o.object_id, o.object
	FROM outcomes o WHERE o.event_id = ANY($1::bigint[]) AND o.object <> 0) k
JOIN objects b USING (source, account, object_type, object_id)
JOIN outcomes c ON c.object = k.object AND c.object <> 0 AND c.status IN ('applied', 'unchanged', 'ambiguous')
  AND c.version = version_json(b.version_final, b.version_at, b.version_seen, b.version_rank)
WHERE b.tied_states = '[]' AND b.version_at > -9223372036854775808 AND NOT EXISTS (SELECT FROM redacted_events r
	WHERE r.event = c.event_id)`

	// clearedRowsSQL is a page of the rows that a run has cleared, with or without an event.
	clearedRowsSQL = `
SELECT o.account, o.object_type, o.object_id FROM objects o
WHERE o.source = $1 AND ($2::text IS NULL OR o.account = $2) AND (o.account, o.object_type, o.object_id) > ($3, $4, $5)
	AND o.state IS NULL AND o.tied_states = '[]'
  AND o.version_at > -9223372036854775808 AND o.updated_at >= (SELECT r.began_at FROM redactions r WHERE r.run = $6)
ORDER BY o.account, o.object_type, o.object_id LIMIT 200`

	sameVersionOfClearedSQL = `
SELECT DISTINCT c.event_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS k(source,
	account, object_type, object_id, object)
JOIN objects o USING (source, account, object_type, object_id)
JOIN outcomes c ON c.object = k.object AND c.object <> 0 AND c.status IN ('applied', 'unchanged', 'ambiguous')
  AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)
WHERE o.tied_states = '[]' AND o.version_at > -9223372036854775808 AND NOT EXISTS (SELECT FROM redacted_events r
	WHERE r.event = c.event_id)`

	openRebuildSQL = `SELECT EXISTS (SELECT FROM runs r WHERE r.job = 'rebuild' AND r.ended_at IS NULL)`
)

// reapplySameVersion applies again the events that had the same version as a redacted one, because
// the cleared rows held their states too. The mirror comes last, since its cleared row marks
// unfinished work.
func (w *execution) reapplySameVersion(ctx context.Context) (runs.Status, error) {
	for after := int64(0); ; {
		done, err := collect(ctx, w.Pool, redactedEventsSQL, w.lease.Run.ID, after, readBatch)
		if err != nil || len(done) == 0 {
			return cmp.Or(w.lease.Status, runs.Running), err
		}
		after = done[len(done)-1]
		ids, err := collect(ctx, w.Pool, sameVersionSQL, done)
		if err == nil {
			err = w.reapply(ctx, mirrorTable, ids)
		}
		if err != nil {
			return "", err
		}
	}
}

// reapply applies events to a table again. Events of the mirror also go into the retained objects
// and into the staged objects of an open rebuild. Both may already have read the log past these
// events.
func (w *execution) reapply(ctx context.Context, table string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if table != stagedTable {
		if err := w.Applier.ReduceInto(ctx, versioning.RetainedObjects, ids); err != nil {
			return err
		}
	}
	var open bool
	if table != retainedTable {
		if err := w.Pool.QueryRow(ctx, openRebuildSQL).Scan(&open); err != nil {
			return fmt.Errorf("look for open rebuilds: %w", err)
		}
	}
	if open {
		if err := w.Applier.ReduceInto(ctx, versioning.Staged, ids); err != nil {
			return err
		}
	}
	if table != mirrorTable {
		return nil
	}
	_, err := w.Applier.ApplyStored(ctx, apply.Target{Run: w.lease.Run.ID}, ids, false)
	return err
}

// reapplyCleared handles the rows that were cleared because their state matched. Events of the same
// version that the log still has are redacted if they match too, and applied again if they do not.
func (w *execution) reapplyCleared(ctx context.Context) (runs.Status, error) {
	if !w.params.searchesBodies() {
		return runs.Running, nil
	}
	sources, err := w.params.sources(ctx, w.Pool)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		for _, table := range tables() {
			if status, err := w.reapplyClearedOf(ctx, table, source); err != nil || status != runs.Running {
				return status, err
			}
		}
	}
	return runs.Running, nil
}

// reapplyClearedOf handles the rows of one table and source.
func (w *execution) reapplyClearedOf(ctx context.Context, table string, source int32) (runs.Status, error) {
	for last := (Object{Source: source}); ; {
		some, err := w.clearedRows(ctx, table, last)
		if err != nil {
			return "", err
		}
		if len(some) == 0 {
			return runs.Running, nil
		}
		last, w.objectsCleared = some[len(some)-1], true
		if err := w.reapplyRows(ctx, table, some); err != nil {
			return "", err
		}
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
}

func (w *execution) clearedRows(ctx context.Context, table string, last Object) (some []Object, err error) {
	o := Object{Source: last.Source}
	err = postgres.ForEach(ctx, w.Pool, forTable(table, clearedRowsSQL), []any{last.Source,
		events.NilIfZero(w.params.Account), last.Account, last.Type, last.ID, w.lease.Run.ID},
		[]any{&o.Account, &o.Type, &o.ID}, func() error { some = append(some, o); return nil })
	if err != nil {
		return nil, fmt.Errorf("read cleared rows of %s: %w", table, err)
	}
	return some, nil
}

func (w *execution) reapplyRows(ctx context.Context, table string, some []Object) error {
	var k keys
	locks := make([]int64, len(some))
	for i, o := range some {
		k.add(o)
		locks[i] = o.hash()
	}
	ids, err := collect(ctx, w.Pool, forTable(table, sameVersionOfClearedSQL), k.sources, k.accounts, k.types, k.ids,
		locks)
	if err != nil || len(ids) == 0 {
		return err
	}
	matching, err := w.Applier.EventsWithState(ctx, ids, w.params.matchesState)
	if err == nil {
		matching, err = w.withoutLater(ctx, matching)
	}
	if err != nil {
		return err
	}
	if err := w.redactFound(ctx, matching); err != nil {
		return err
	}
	return w.reapply(ctx, table, slices.DeleteFunc(ids, func(id int64) bool { return slices.Contains(matching, id) }))
}
