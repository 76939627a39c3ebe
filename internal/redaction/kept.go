package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	rejectionsSQL = `
SELECT id, body, detail || ' ' || headers::text FROM rejections WHERE id > $1 AND ($2::int IS NULL OR source = $2) ORDER BY id LIMIT 50`

	conflictsSQL = `
SELECT id, body, headers::text FROM event_conflicts
WHERE id > $1 AND ($2::int IS NULL OR source = $2) AND ($3::text IS NULL OR account = $3) AND (body <> '' OR headers <> '{}') ORDER BY id LIMIT 50`

	redactConflictsSQL = `SELECT redact_conflicts($1, $2)`
)

// refused removes refused deliveries that have a value the order looks for: nobody proved who sent them, but the value may be true.
func (w *work) refused(ctx context.Context) error {
	return w.order.eachRefused(ctx, w.Pool, func(found []int64, _ int64) error { return w.redact(ctx, nil, nil, found) })
}

// differing clears deliveries that came under the key of an event with other content, and have what the order looks for: the event itself may not have it. Those of
// redacted events are cleared by then.
func (w *work) differing(ctx context.Context) (runs.Status, error) {
	return runs.Running, w.order.eachDiffering(ctx, w.Pool, func(found []int64, unread int64) error {
		var n int64
		if err := w.Pool.QueryRow(ctx, redactConflictsSQL, w.hold.Run.Run, found).Scan(&n); err != nil {
			return fmt.Errorf("redact conflicts: %w", err)
		}
		w.hold.Counts[CountConflicts] += n
		w.hold.Counts[CountUnread] += unread
		return nil
	})
}

// eachRefused gives the refused deliveries that have a value the order looks for, some at a time, and how many cannot be read.
func (o *Order) eachRefused(ctx context.Context, pool *pgxpool.Pool, do func(found []int64, unread int64) error) error {
	if len(o.Finds) == 0 {
		return nil
	}
	return o.eachKept(ctx, pool, CountRejections, rejectionsSQL, []any{events.Optional(o.Source)}, do)
}

// eachDiffering gives the conflicts that have what the order looks for, some at a time, and how many cannot be read.
func (o *Order) eachDiffering(ctx context.Context, pool *pgxpool.Pool, do func(found []int64, unread int64) error) error {
	if !o.scans() {
		return nil
	}
	return o.eachKept(ctx, pool, CountConflicts, conflictsSQL, []any{events.Optional(o.Source), o.Account}, do)
}

// eachKept looks through deliveries that are kept beside the log, a page at a time, for those that the order takes.
func (o *Order) eachKept(ctx context.Context, pool *pgxpool.Pool, what, sql string, of []any, do func(found []int64, unread int64) error) error {
	for after := int64(0); ; {
		rows, err := pool.Query(ctx, sql, append([]any{after}, of...)...)
		if err != nil {
			return fmt.Errorf("look through %s: %w", what, err)
		}
		found := []int64{}
		var id, unread int64
		var body []byte
		var around string
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&id, &body, &around}, func() error {
			n++
			hit, blind := search(o.Finds, body)
			if hit || o.wholly() || mentioned(o.Finds, []byte(around)) {
				found = append(found, id)
			} else if blind {
				unread++
			}
			return nil
		}); err != nil {
			return fmt.Errorf("look through %s: %w", what, err)
		}
		if n == 0 {
			return nil
		}
		if after = id; len(found) > 0 || unread > 0 {
			if err := do(found, unread); err != nil {
				return err
			}
		}
	}
}
