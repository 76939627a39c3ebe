package events

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Preview is how much a filter chooses.
type Preview struct {
	Events  int64 `json:"events"`
	Objects int64 `json:"objects"`
	// Exact: the numbers were counted; otherwise they are PostgreSQL's estimates, and From and To the ends of what is looked through.
	Exact bool `json:"exact"`
	// From and To are when the first and the last of the events were stored; zero where there is none.
	From Instant `json:"from"`
	To   Instant `json:"to"`
}

const (
	countColumns = `
SELECT count(*), count(DISTINCT (e.source, e.account, e.object_type, e.object_id)) FILTER (WHERE e.object_id <> ''), coalesce(min(e.id), 0), coalesce(max(e.id), 0)
FROM events e
LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE $11::text IS NOT NULL AND o.event_id = e.id AND o.run = 0 LIMIT 1) o ON true
WHERE `
	countRangeSQL = countColumns + `e.id > $1 AND e.id <= $2` + conditions
	countIDsSQL   = countColumns + `e.id = ANY($1::bigint[]) AND e.id <= $2` + conditions

	// ofObjects and ofDead choose by the ledger of outcomes.
	ofObjects = ` AND e.id IN (SELECT c.event_id FROM outcomes c WHERE c.object = ANY($13::bigint[]) AND c.object <> 0 AND c.event_id > $1 AND c.event_id <= $2)`
	ofDead    = ` AND e.id IN (SELECT c.event_id FROM outcomes c WHERE c.status = 'dead' AND c.run = 0 AND c.event_id > $1 AND c.event_id <= $2)`

	countObjectsSQL  = countRangeSQL + ofObjects
	countDeadSQL     = countRangeSQL + ofDead
	likelyByObjects  = matchColumns + `e.id > $1 AND e.id <= $2` + conditions + ofObjects
	likelyDeadSQL    = matchColumns + `e.id > $1 AND e.id <= $2` + conditions + ofDead
	someOfObjectsSQL = `SELECT count(*) FROM (SELECT FROM outcomes c WHERE c.object = ANY($4::bigint[]) AND c.object <> 0 AND c.event_id > $1 AND c.event_id <= $2 LIMIT $3) c`
	someDeadSQL      = `SELECT count(*) FROM (SELECT FROM outcomes c WHERE c.status = 'dead' AND c.run = 0 AND c.event_id > $1 AND c.event_id <= $2 LIMIT $3) c`

	endsSQL = `SELECT coalesce((SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT 1), 0), coalesce((SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id DESC LIMIT 1), 0)`

	rangeSQL = `SELECT FROM events WHERE id > $1 AND id <= $2`

	likelyObjectsSQL = `SELECT FROM objects o WHERE ($1::int IS NULL OR o.source = $1) AND ($2::text IS NULL OR o.account = $2)
  AND ($3::text IS NULL OR o.object_type = $3) AND ($4::text IS NULL OR o.object_id = $4)`
)

// countBelow is how many events are rather counted than estimated: PostgreSQL knows little of a table that is small or new.
const countBelow = 10_000

// Count counts what the filter chooses now, in the database alone.
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
	p.Exact = true
	p.between(lo, hi)
	return p, nil
}

func (p *Preview) between(lo, hi int64) {
	if lo > 0 {
		p.From.Time, p.To.Time = Time(lo), Time(hi)
	}
}

// Estimate says about how much the filter chooses, from PostgreSQL's statistics, without looking at an event; where there is little to look at, it counts.
func Estimate(ctx context.Context, pool *pgxpool.Pool, f *Filter) (p Preview, err error) {
	below, from := f.bounds()
	sql, args := matchRangeSQL, append([]any{from - 1, below - 1}, f.conditions()...)
	few := f.IDs != nil
	switch {
	case few:
	case f.Objects != nil:
		sql, args = likelyByObjects, append(args, f.Objects)
		few, err = fewerThan(ctx, pool, someOfObjectsSQL, from-1, below-1, countBelow, f.Objects)
	case f.Status == "dead":
		sql = likelyDeadSQL
		few, err = fewerThan(ctx, pool, someDeadSQL, from-1, below-1, countBelow)
	}
	if err != nil {
		return p, fmt.Errorf("estimate events: %w", err)
	}
	if few {
		return Count(ctx, pool, f)
	}
	var lo, hi int64
	if err := pool.QueryRow(ctx, endsSQL, from-1, below-1).Scan(&lo, &hi); err != nil {
		return p, fmt.Errorf("estimate events: %w", err)
	}
	if p.between(lo, hi); lo == 0 {
		return Preview{Exact: true}, nil
	}
	all, err := planned(ctx, pool, rangeSQL, lo-1, hi)
	if err != nil || all < countBelow {
		return Count(ctx, pool, f)
	}
	if p.Events, err = planned(ctx, pool, sql, args...); err != nil {
		return p, err
	}
	objects, err := planned(ctx, pool, likelyObjectsSQL, Optional(f.Source), f.Account, Optional(f.ObjectType), Optional(f.ObjectID))
	p.Objects = min(objects, p.Events)
	return p, err
}

// fewerThan says whether a statement that counts up to its third argument counts less.
func fewerThan(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (bool, error) {
	var n int
	err := pool.QueryRow(ctx, sql, args...).Scan(&n)
	return n < countBelow, err
}

// planned is how many rows PostgreSQL expects of a statement.
func planned(ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (rows int64, err error) {
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
		return 0, fmt.Errorf("estimate rows: a plan that cannot be read: %v", err)
	}
	return plans[0].Plan.Rows, nil
}
