package processor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// Unfinished selects failed and dead outcomes of one run.
type Unfinished struct {
	// Run is the run of the outcomes.
	Run int64 `json:"run"`
	// Status is "failed" or "dead", "" for both.
	Status string `json:"status,omitzero"`
	// ReasonContains is a text that the outcome's reason contains.
	ReasonContains string `json:"failure,omitzero"`
	// Objects are hashes of object keys. The object fields of Filter select outcomes that failed
	// before their object was known.
	Objects []int64 `json:"objects,omitzero"`
	// Filter selects the events. Its Status and Objects are ignored.
	Filter events.Filter `json:"filter"`
}

// unfinishedSQL reads a range of the unfinished outcomes of a run. For each outcome it tells
// whether Status and Failure select it, and whether Objects contains its object.
const unfinishedSQL = `
SELECT o.event_id, ($5::text IS NULL OR o.status = $5) AND ($6::text IS NULL OR position($6 IN o.reason) > 0),
	coalesce(o.object <> 0 AND o.object = ANY($7::bigint[]), false)
FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $2 AND o.event_id <= $3
	ORDER BY o.event_id LIMIT $4`

const unfinishedIDsSQL = `
SELECT o.event_id, ($5::text IS NULL OR o.status = $5) AND ($6::text IS NULL OR position($6 IN o.reason) > 0),
	coalesce(o.object <> 0 AND o.object = ANY($7::bigint[]), false)
FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $2 AND o.event_id <= $3
	AND o.event_id = ANY($8::bigint[]) ORDER BY o.event_id LIMIT $4`

// unfinishedScan is how many outcomes one range has.
const unfinishedScan = 10_000

// Match reads one range of the unfinished outcomes of the run, in id order, above after and up to
// the bound. It returns the selected ids, ascending, and the end of the range. end is the bound
// when no more outcomes follow.
func (u *Unfinished) Match(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64,
	err error) {
	sql, args := unfinishedSQL, []any{u.Run, after, bound, unfinishedScan, events.NilIfZero(u.Status),
		events.NilIfZero(u.ReasonContains), u.Objects}
	if u.Filter.IDs != nil {
		sql, args = unfinishedIDsSQL, append(args, u.Filter.IDs)
	}
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, after, fmt.Errorf("walk unfinished outcomes of run %d: %w", u.Run, err)
	}
	var id int64
	var selected, object bool
	byObject, others, n := []int64{}, []int64{}, 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &selected, &object}, func() error {
		switch n++; {
		case selected && object:
			byObject = append(byObject, id)
		case selected:
			others = append(others, id)
		}
		return nil
	}); err != nil {
		return nil, after, fmt.Errorf("walk unfinished outcomes of run %d: %w", u.Run, err)
	}
	if end = bound; n == unfinishedScan {
		end = id
	}
	ids, err = u.filter(ctx, pool, byObject, others)
	return ids, end, err
}

// filter returns the events that the filter selects. For byObject it ignores the object fields of
// the filter.
func (u *Unfinished) filter(ctx context.Context, pool *pgxpool.Pool, byObject, others []int64) ([]int64, error) {
	f := u.Filter
	f.Status, f.Objects, f.IDs = "", nil, others
	ids, err := matchAll(ctx, pool, &f)
	if err != nil || len(byObject) == 0 {
		return ids, err
	}
	f.ObjectType, f.ObjectID, f.Account, f.IDs = "", "", nil, byObject
	more, err := matchAll(ctx, pool, &f)
	return merge(ids, more), err
}

func matchAll(ctx context.Context, pool *pgxpool.Pool, f *events.Filter) ([]int64, error) {
	if len(f.IDs) == 0 {
		return nil, nil
	}
	ids, _, err := events.Match(ctx, pool, f, f.IDs[0]-1, f.IDs[len(f.IDs)-1])
	return ids, err
}

// merge merges two ascending lists.
func merge(a, b []int64) []int64 {
	all := make([]int64, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] < b[0] {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}
