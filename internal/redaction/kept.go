package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	rejectionsSQL = `
SELECT id, body, detail || ' ' || headers::text FROM rejections WHERE id > $1 AND ($2::int IS NULL OR source = $2) ORDER BY id LIMIT 50`

	conflictsSQL = `
SELECT id, body, headers::text FROM event_conflicts
WHERE id > $1 AND ($2::int IS NULL OR source = $2) AND ($3::text IS NULL OR account = $3) AND body <> '' ORDER BY id LIMIT 50`

	redactConflictsSQL = `SELECT redact_conflicts($1, $2)`
)

// refused removes refused deliveries that have a value the order looks for: nobody proved who sent them, but the value may be true.
func (w *work) refused(ctx context.Context) error {
	if len(w.order.Finds) == 0 {
		return nil
	}
	return w.kept(ctx, CountRejections, rejectionsSQL, []any{events.Optional(w.order.Source)}, func(found []int64) error { return w.redact(ctx, nil, nil, found) })
}

// differing clears deliveries that came under the key of an event with other content, and have what the order looks for: the event itself may not have it. Those of
// redacted events are cleared by then.
func (w *work) differing(ctx context.Context) (runs.Status, error) {
	if !w.order.scans() {
		return runs.Running, nil
	}
	return runs.Running, w.kept(ctx, CountConflicts, conflictsSQL, []any{events.Optional(w.order.Source), w.order.Account}, func(found []int64) error {
		var n int64
		if err := w.Pool.QueryRow(ctx, redactConflictsSQL, w.hold.Run.Run, found).Scan(&n); err != nil {
			return fmt.Errorf("redact conflicts: %w", err)
		}
		w.hold.Counts[CountConflicts] += n
		return nil
	})
}

// kept looks through deliveries that are kept beside the log, a page at a time, for those that the order takes.
func (w *work) kept(ctx context.Context, what, sql string, of []any, clear func(found []int64) error) error {
	for after := int64(0); ; {
		rows, err := w.Pool.Query(ctx, sql, append([]any{after}, of...)...)
		if err != nil {
			return fmt.Errorf("look through %s: %w", what, err)
		}
		var found []int64
		var id int64
		var body []byte
		var around string
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&id, &body, &around}, func() error {
			n++
			hit, unread := search(w.order.Finds, body)
			if hit || w.order.wholly() || mentioned(w.order.Finds, []byte(around)) {
				found = append(found, id)
			} else if unread && what == CountConflicts { // of what was refused, much is nobody's
				w.hold.Counts[CountUnread]++
			}
			return nil
		}); err != nil {
			return fmt.Errorf("look through %s: %w", what, err)
		}
		if n == 0 {
			return nil
		}
		if after = id; len(found) > 0 {
			if err := clear(found); err != nil {
				return err
			}
		}
	}
}
