package events

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	walkWindowSQL = `SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id OFFSET $3 LIMIT 1`

	walkObjectsWindowSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = ANY($4::bigint[]) AND object <> 0
  AND event_id > $1 AND event_id <= $2 ORDER BY event_id LIMIT $3`

	walkDeadWindowSQL = `SELECT event_id FROM outcomes WHERE status = 'dead' AND run = 0 AND event_id > $1
		AND event_id <= $2
		ORDER BY event_id LIMIT $3`
)

const matchColumns = `
SELECT e.id FROM events e
LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE $11::text IS NOT NULL AND o.event_id = e.id AND o.run = 0
	LIMIT 1) o ON true
WHERE `

// conditions: $1 and $2 are the ids or their range, the rest are the parameters of
// Filter.conditions.
const conditions = `
  AND ($3::int IS NULL OR e.source = $3) AND ($4::text IS NULL OR e.account = $4) AND ($5::text IS NULL
  	OR e.event_type LIKE $5)
  AND ($6::text IS NULL OR e.object_type = $6) AND ($7::text IS NULL OR e.object_id = $7) AND ($8::text IS NULL
  	OR e.event_id = $8)
  AND ($9::timestamptz IS NULL OR e.occurred_at >= $9) AND ($10::timestamptz IS NULL OR e.occurred_at < $10)
  AND ($11::text IS NULL OR coalesce(o.status, 'pending') = $11) AND ($12::text IS NULL OR e.origin = $12)`

const (
	matchRangeSQL = matchColumns + `e.id > $1 AND e.id <= $2` + conditions + ` ORDER BY e.id`
	matchIDsSQL   = matchColumns + `e.id = ANY($1::bigint[]) AND e.id <= $2` + conditions + ` ORDER BY e.id`
)

// Match walks the log forwards. It reads some thousand events after the given id, none above the
// bound. It returns the ids that the filter selects, ascending, and the id up to which it has read;
// end is the bound if there is nothing more. With a bound from FreezeBound nothing is ever skipped.
// Since, Until and AfterID of the filter apply; its Status is compared with the current outcome.
func Match(ctx context.Context, pool *pgxpool.Pool, f *Filter, after, bound int64) (ids []int64, end int64, err error) {
	below, from := f.bounds()
	after, last := max(after, from-1), min(bound, below-1)
	if after >= last {
		return nil, bound, nil
	}
	ids, end, err = f.matchWindow(ctx, pool, after, last)
	if err != nil {
		return nil, after, fmt.Errorf("walk the log after %d: %w", after, err)
	}
	if end == last {
		end = bound
	}
	return ids, end, nil
}

func (f *Filter) matchWindow(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64,
	err error) {
	if f.IDs != nil {
		return f.queryMatches(ctx, pool, matchIDsSQL, f.IDs, bound, bound, after)
	}
	end, ids, _, err = f.window(ctx, pool, forwards, after, bound, maxScannedRows)
	switch {
	case err != nil:
		return nil, 0, err
	case ids == nil:
		return f.queryMatches(ctx, pool, matchRangeSQL, after, end, end, after)
	}
	return f.queryMatches(ctx, pool, matchIDsSQL, ids, end, end, after)
}

// conditions returns the parameters of the SQL conditions, from $3 on.
func (f *Filter) conditions() []any {
	return []any{NilIfZero(f.Source), f.Account, Like(f.Type), NilIfZero(f.ObjectType), NilIfZero(f.ObjectID),
		NilIfZero(f.Key), NilIfZero(f.OccurredSince), NilIfZero(f.OccurredUntil), NilIfZero(f.Status),
		NilIfZero(f.Origin)}
}

// queryMatches returns the ids above after that the filter selects.
func (f *Filter) queryMatches(ctx context.Context, pool *pgxpool.Pool, sql string, first any, last, end,
	after int64) ([]int64, int64, error) {
	ids, err := queryIDs(ctx, pool, sql, append([]any{first, last}, f.conditions()...)...)
	if err != nil {
		return nil, 0, err
	}
	for len(ids) > 0 && ids[0] <= after { // the filter selects it by id, and an earlier call has read it
		ids = ids[1:]
	}
	return ids, end, nil
}
