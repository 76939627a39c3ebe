package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	rejectionsSQL = `
SELECT id, body, detail || ' ' || headers::text FROM rejections WHERE id > $1 AND ($2::int IS NULL OR source = $2)
	ORDER BY id LIMIT 50`

	conflictsSQL = `
SELECT id, body, headers::text FROM event_conflicts
WHERE id > $1 AND ($2::int IS NULL OR source = $2) AND ($3::text IS NULL OR account = $3)
	AND (body <> '' OR headers <> '{}') ORDER BY id LIMIT 50`

	redactConflictsSQL = `SELECT redact_conflicts($1, $2)`
)

// redactRejections deletes rejected deliveries that contain a searched value. Their sender is not
// verified, but the value may be real.
func (w *execution) redactRejections(ctx context.Context) error {
	return w.params.eachMatchingRejection(ctx, w.Pool,
		func(found []int64, _ int64) error { return w.redact(ctx, nil, nil, found) })
}

// redactConflicts clears matching deliveries that came under the key of an event with other
// content. The event itself may not match. Conflicts of redacted events are already cleared.
func (w *execution) redactConflicts(ctx context.Context) (runs.Status, error) {
	return runs.Running, w.params.eachMatchingConflict(ctx, w.Pool, func(found []int64, unread int64) error {
		var n int64
		if err := w.Pool.QueryRow(ctx, redactConflictsSQL, w.lease.Run.ID, found).Scan(&n); err != nil {
			return fmt.Errorf("redact conflicts: %w", err)
		}
		w.lease.Counts[CountConflicts] += n
		w.lease.Counts[CountUnread] += unread
		return nil
	})
}

// eachMatchingRejection calls do with batches of the rejected deliveries that contain a searched
// value, and with the number of unreadable ones.
func (o *Params) eachMatchingRejection(ctx context.Context, pool *pgxpool.Pool,
	do func(found []int64, unread int64) error) error {
	if len(o.Matchers) == 0 {
		return nil
	}
	return o.eachStored(ctx, pool, CountRejections, rejectionsSQL, []any{events.NilIfZero(o.Source)}, do)
}

// eachMatchingConflict calls do with batches of the matching conflicts, and with the number of
// unreadable ones.
func (o *Params) eachMatchingConflict(ctx context.Context, pool *pgxpool.Pool,
	do func(found []int64, unread int64) error) error {
	if !o.searchesBodies() {
		return nil
	}
	return o.eachStored(ctx, pool, CountConflicts, conflictsSQL, []any{events.NilIfZero(o.Source), o.Account}, do)
}

// eachStored searches deliveries that are stored outside of the log, a page at a time.
func (o *Params) eachStored(ctx context.Context, pool *pgxpool.Pool, kind, sql string, args []any,
	do func(found []int64, unread int64) error) error {
	for after := int64(0); ; {
		found := []int64{}
		var id, unread int64
		var body []byte
		var details string
		n := 0
		if err := postgres.ForEach(ctx, pool, sql, append([]any{after}, args...), []any{&id, &body, &details},
			func() error {
				n++
				hit, unreadable := search(o.Matchers, body)
				if hit || o.takesWholeAccount() || mentionsAny(o.Matchers, []byte(details)) {
					found = append(found, id)
				} else if unreadable {
					unread++
				}
				return nil
			}); err != nil {
			return fmt.Errorf("search %s: %w", kind, err)
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
