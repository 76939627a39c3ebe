package events

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Preview is how many events and objects a filter selects.
type Preview struct {
	Events  int64 `json:"events"`
	Objects int64 `json:"objects"`
	// ExactCounts is true if the numbers were counted. Otherwise they are PostgreSQL's estimates,
	// and From and To are the ends of the searched range.
	ExactCounts bool `json:"exact"`
	// From and To are when the first and the last of the events were stored; zero if there is none.
	From Instant `json:"from"`
	To   Instant `json:"to"`
}

const (
	countColumns = `
SELECT count(*), count(DISTINCT (e.source, e.account, e.object_type, e.object_id)) FILTER (WHERE e.object_id <> ''),
	coalesce(min(e.id), 0), coalesce(max(e.id), 0)
FROM events e
LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE $11::text IS NOT NULL AND o.event_id = e.id AND o.run = 0
	LIMIT 1) o ON true
WHERE `
	countRangeSQL = countColumns + `e.id > $1 AND e.id <= $2` + conditions
	countIDsSQL   = countColumns + `e.id = ANY($1::bigint[]) AND e.id <= $2` + conditions

	// byObjects and byDead select events by their outcomes.
	byObjects = ` AND e.id IN (SELECT c.event_id FROM outcomes c WHERE c.object = ANY($13::bigint[]) AND c.object <> 0
		AND c.event_id > $1 AND c.event_id <= $2)`
	byDead = ` AND e.id IN (SELECT c.event_id FROM outcomes c WHERE c.status = 'dead' AND c.run = 0
		AND c.event_id > $1 AND c.event_id <= $2)`

	countObjectsSQL       = countRangeSQL + byObjects
	countDeadSQL          = countRangeSQL + byDead
	estimateByObjectsSQL  = matchColumns + `e.id > $1 AND e.id <= $2` + conditions + byObjects
	estimateDeadSQL       = matchColumns + `e.id > $1 AND e.id <= $2` + conditions + byDead
	countSomeByObjectsSQL = `SELECT count(*) FROM (SELECT FROM outcomes c WHERE c.object = ANY($4::bigint[])
		AND c.object <> 0 AND c.event_id > $1 AND c.event_id <= $2 LIMIT $3) c`
	countSomeDeadSQL = `SELECT count(*) FROM (SELECT FROM outcomes c WHERE c.status = 'dead' AND c.run = 0
		AND c.event_id > $1 AND c.event_id <= $2 LIMIT $3) c`

	firstAndLastSQL = `SELECT coalesce((SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT 1), 0),
		coalesce((SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id DESC LIMIT 1), 0)`

	rangeSQL = `SELECT FROM events WHERE id > $1 AND id <= $2`

	estimateObjectsSQL = `SELECT FROM objects o WHERE ($1::int IS NULL OR o.source = $1) AND ($2::text IS NULL
		OR o.account = $2)
  AND ($3::text IS NULL OR o.object_type = $3) AND ($4::text IS NULL OR o.object_id = $4)`
)

// countThreshold is the number of events below which events are counted instead of estimated.
// PostgreSQL has poor statistics of small and new tables.
const countThreshold = 10_000

// Count counts what the filter selects now, in the database.
func Count(ctx context.Context, pool *pgxpool.Pool, f *Filter) (p Preview, err error) {
	below, from := f.bounds()
	sql, args := countRangeSQL, append([]any{from - 1, below - 1}, f.conditions()...)
	switch {
	case f.IDs != nil:
		sql, args[0] = countIDsSQL, f.IDs
	case f.Objects != nil:
		sql, args = countObjectsSQL, append(args, f.Objects)
	case f.Status == "dead":
		sql = countDeadSQL
	}
	var lo, hi int64
	if err := pool.QueryRow(ctx, sql, args...).Scan(&p.Events, &p.Objects, &lo, &hi); err != nil {
		return p, fmt.Errorf("count events: %w", err)
	}
	p.ExactCounts = true
	p.setRange(lo, hi)
	return p, nil
}

func (p *Preview) setRange(lo, hi int64) {
	if lo > 0 {
		p.From.Time, p.To.Time = Time(lo), Time(hi)
	}
}

// Estimate returns approximately how much the filter selects, from PostgreSQL's statistics, without
// reading events. If there are few events, it counts them.
func Estimate(ctx context.Context, pool *pgxpool.Pool, f *Filter) (p Preview, err error) {
	below, from := f.bounds()
	sql, args := matchRangeSQL, append([]any{from - 1, below - 1}, f.conditions()...)
	isSmall := f.IDs != nil
	switch {
	case isSmall:
	case f.Objects != nil:
		sql, args = estimateByObjectsSQL, append(args, f.Objects)
		isSmall, err = isBelowThreshold(ctx, pool, countSomeByObjectsSQL, from-1, below-1, countThreshold, f.Objects)
	case f.Status == "dead":
		sql = estimateDeadSQL
		isSmall, err = isBelowThreshold(ctx, pool, countSomeDeadSQL, from-1, below-1, countThreshold)
	}
	if err != nil {
		return p, fmt.Errorf("estimate events: %w", err)
	}
	if isSmall {
		return Count(ctx, pool, f)
	}
	var lo, hi int64
	if err := pool.QueryRow(ctx, firstAndLastSQL, from-1, below-1).Scan(&lo, &hi); err != nil {
		return p, fmt.Errorf("estimate events: %w", err)
	}
	if p.setRange(lo, hi); lo == 0 {
		return Preview{ExactCounts: true}, nil
	}
	all, err := estimateRows(ctx, pool, rangeSQL, lo-1, hi)
	if err != nil || all < countThreshold {
		return Count(ctx, pool, f)
	}
	if p.Events, err = estimateRows(ctx, pool, sql, args...); err != nil {
		return p, err
	}
	objects, err := estimateRows(ctx, pool, estimateObjectsSQL, NilIfZero(f.Source), f.Account, NilIfZero(f.ObjectType),
		NilIfZero(f.ObjectID))
	p.Objects = min(objects, p.Events)
	return p, err
}

// isBelowThreshold runs a statement that counts rows and stops at its third argument. It returns
// true if the count is less than countThreshold.
func isBelowThreshold(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (bool, error) {
	var n int
	err := pool.QueryRow(ctx, sql, args...).Scan(&n)
	return n < countThreshold, err
}

// estimateRows returns how many rows PostgreSQL expects a statement to return.
func estimateRows(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (rows int64, err error) {
	var text []byte
	if err := pool.QueryRow(ctx, "EXPLAIN (FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		return 0, fmt.Errorf("estimate rows: %w", err)
	}
	var plans []struct {
		Plan struct {
			Rows int64 `json:"Plan Rows"`
		} `json:"Plan"`
	}
	if err := json.Unmarshal(text, &plans); err != nil || len(plans) != 1 {
		return 0, fmt.Errorf("estimate rows: the plan cannot be read: %v", err)
	}
	return plans[0].Plan.Rows, nil
}
