package redaction

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	doneSQL = `SELECT event FROM redacted WHERE run = $1 AND event > $2 ORDER BY event LIMIT $3`

	// besideSQL: events of the very version of a row that was cleared tell what may still be told.
	besideSQL = `
SELECT DISTINCT c.event_id FROM (SELECT DISTINCT o.source, o.account, o.object_type, o.object_id, o.object FROM outcomes o WHERE o.event_id = ANY($1::bigint[]) AND o.object <> 0) k
JOIN objects b USING (source, account, object_type, object_id)
JOIN outcomes c ON c.object = k.object AND c.object <> 0 AND c.status IN ('applied', 'unchanged', 'ambiguous')
  AND c.version = version_json(b.version_final, b.version_at, b.version_seen, b.version_rank)
WHERE b.tie_set = '[]' AND b.version_at > -9223372036854775808 AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = c.event_id)`

	// coveredSQL is a page of the rows that a run has cleared, whether or not it knew of an event.
	coveredSQL = `
SELECT o.account, o.object_type, o.object_id FROM objects o
WHERE o.source = $1 AND ($2::text IS NULL OR o.account = $2) AND (o.account, o.object_type, o.object_id) > ($3, $4, $5) AND o.state IS NULL AND o.tie_set = '[]'
  AND o.version_at > -9223372036854775808 AND o.updated_at >= (SELECT r.began_at FROM redactions r WHERE r.run = $6)
ORDER BY o.account, o.object_type, o.object_id LIMIT 200`

	besideCoveredSQL = `
SELECT DISTINCT c.event_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[]) AS k(source, account, object_type, object_id, object)
JOIN objects o USING (source, account, object_type, object_id)
JOIN outcomes c ON c.object = k.object AND c.object <> 0 AND c.status IN ('applied', 'unchanged', 'ambiguous')
  AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)
WHERE o.tie_set = '[]' AND o.version_at > -9223372036854775808 AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = c.event_id)`

	openSQL = `SELECT EXISTS (SELECT FROM runs r WHERE r.job = 'rebuild' AND r.ended_at IS NULL)`
)

// again applies those events once more that shared their version with a redacted one: the rows that were cleared held what they said, too. The mirror comes last, since its row
// tells that there is something left to do.
func (w *work) again(ctx context.Context) (runs.Status, error) {
	for after := int64(0); ; {
		done, err := collect(ctx, w.Pool, doneSQL, w.hold.Run.Run, after, lookAtOnce)
		if err != nil || len(done) == 0 {
			return cmp.Or(w.hold.Status, runs.Running), err
		}
		after = done[len(done)-1]
		ids, err := collect(ctx, w.Pool, besideSQL, done)
		if err == nil {
			err = w.join(ctx, mirror, ids)
		}
		if err != nil {
			return "", err
		}
	}
}

// join joins events into a table; those of the mirror into the bases too, and into what an open rebuild has staged, which may both be past them in the log.
func (w *work) join(ctx context.Context, table string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if table != staged {
		if err := w.Processor.Join(ctx, versioning.Bases, ids); err != nil {
			return err
		}
	}
	var open bool
	if table != bases {
		if err := w.Pool.QueryRow(ctx, openSQL).Scan(&open); err != nil {
			return fmt.Errorf("look for open rebuilds: %w", err)
		}
	}
	if open {
		if err := w.Processor.Join(ctx, versioning.Staged, ids); err != nil {
			return err
		}
	}
	if table != mirror {
		return nil
	}
	_, err := w.Processor.ApplyStored(ctx, processor.Target{Run: w.hold.Run.Run}, ids, false)
	return err
}

// covered looks at the rows that were cleared for what they showed: events of their version that the log still has are redacted where that is what they tell, and joined again where not.
func (w *work) covered(ctx context.Context) (runs.Status, error) {
	if !w.order.scans() {
		return runs.Running, nil
	}
	sources, err := w.order.sources(ctx, w.Pool)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		for _, table := range tables() {
			if status, err := w.coveredOf(ctx, table, source); err != nil || status != runs.Running {
				return status, err
			}
		}
	}
	return runs.Running, nil
}

// coveredOf looks at the rows of one table and source.
func (w *work) coveredOf(ctx context.Context, table string, source int32) (runs.Status, error) {
	for last := (Object{Source: source}); ; {
		some, err := w.clearedRows(ctx, table, last)
		if err != nil {
			return "", err
		}
		if len(some) == 0 {
			return runs.Running, nil
		}
		last, w.cleared = some[len(some)-1], true
		if err := w.uncover(ctx, table, some); err != nil {
			return "", err
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
}

func (w *work) clearedRows(ctx context.Context, table string, last Object) (some []Object, err error) {
	rows, err := w.Pool.Query(ctx, in(table, coveredSQL), last.Source, events.Optional(w.order.Account), last.Account, last.Type, last.ID, w.hold.Run.Run)
	if err == nil {
		some, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (Object, error) {
			o := Object{Source: last.Source}
			return o, r.Scan(&o.Account, &o.Type, &o.ID)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read what was cleared of %s: %w", table, err)
	}
	return some, nil
}

func (w *work) uncover(ctx context.Context, table string, some []Object) error {
	var k keys
	locks := make([]int64, len(some))
	for i, o := range some {
		k.add(o)
		locks[i] = o.hash()
	}
	ids, err := collect(ctx, w.Pool, in(table, besideCoveredSQL), k.sources, k.accounts, k.types, k.ids, locks)
	if err != nil || len(ids) == 0 {
		return err
	}
	hers, err := w.Processor.Telling(ctx, ids, w.order.shows)
	if err == nil {
		hers, err = w.meant(ctx, hers)
	}
	if err != nil {
		return err
	}
	if err := w.each(ctx, hers); err != nil {
		return err
	}
	return w.join(ctx, table, slices.DeleteFunc(ids, func(id int64) bool { return slices.Contains(hers, id) }))
}
