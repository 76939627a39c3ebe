package apply

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Unfinished selects failed and dead outcomes of one run.
type Unfinished struct {
	// Run is the run of the outcomes.
	Run int64 `json:"run"`
	// Status is "failed" or "dead", "" for both.
	Status string `json:"status,omitzero"`
	// ReasonContains is a text that the outcome's reason contains.
	ReasonContains string `json:"failure,omitzero"`
	// Pattern is the FailurePattern of the outcome's reason.
	Pattern string `json:"failure_pattern,omitzero"`
	// Objects are hashes of object keys. The object fields of Filter select outcomes that failed
	// before their object was known.
	Objects []int64 `json:"objects,omitzero"`
	// Filter selects the events. Its Status and Objects are ignored.
	Filter events.Filter `json:"filter"`
}

// unfinishedSQL reads a range of the unfinished outcomes of a run. For each outcome it tells
// whether Status and Failure select it, and whether Objects contains its object. $8 is how much of
// the reason it returns.
const unfinishedSQL = `
SELECT o.event_id, ($5::text IS NULL OR o.status = $5) AND ($6::text IS NULL OR position($6 IN o.reason) > 0),
	coalesce(o.object <> 0 AND o.object = ANY($7::bigint[]), false), left(o.reason, $8)
FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $2 AND o.event_id <= $3
	ORDER BY o.event_id LIMIT $4`

const unfinishedIDsSQL = `
SELECT o.event_id, ($5::text IS NULL OR o.status = $5) AND ($6::text IS NULL OR position($6 IN o.reason) > 0),
	coalesce(o.object <> 0 AND o.object = ANY($7::bigint[]), false), left(o.reason, $8)
FROM outcomes o WHERE o.run = $1 AND o.status IN ('failed', 'dead') AND o.event_id > $2 AND o.event_id <= $3
	AND o.event_id = ANY($9::bigint[]) ORDER BY o.event_id LIMIT $4`

// unfinishedScan is how many outcomes one range has.
const unfinishedScan = 10_000

// Match reads one range of the unfinished outcomes of the run, in id order, above after and up to
// the bound. It returns the selected ids, ascending, and the end of the range. end is the bound
// when no more outcomes follow.
func (u *Unfinished) Match(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64,
	err error) {
	length := 0
	if u.Pattern != "" {
		length = maxFailureReason
	}
	sql, args := unfinishedSQL, []any{u.Run, after, bound, unfinishedScan, events.NilIfZero(u.Status),
		events.NilIfZero(u.ReasonContains), u.Objects, length}
	if u.Filter.IDs != nil {
		sql, args = unfinishedIDsSQL, append(args, u.Filter.IDs)
	}
	var id int64
	var selected, object bool
	var reason string
	byObject, others, n := []int64{}, []int64{}, 0
	if err := postgres.ForEach(ctx, pool, sql, args, []any{&id, &selected, &object, &reason}, func() error {
		selected = selected && (u.Pattern == "" || FailurePattern(reason) == u.Pattern)
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

// CountPending counts those of the given events that have no live outcome yet, or a failed one that
// is retried. It does not count events that retention has dropped from the log, because those had a
// final outcome.
func (a *Applier) CountPending(ctx context.Context, ids []int64) (n int64, err error) {
	err = a.Pool.QueryRow(ctx, countPendingSQL, ids, events.LiveRun).Scan(&n)
	return n, unavailable(err)
}

// OldestPending returns the first pending event of the given ones, as CountPending counts them:
// failed events come before events without an outcome. It also returns the reason of the last
// attempt. The id is 0 if there is none.
func (a *Applier) OldestPending(ctx context.Context, ids []int64) (id int64, reason string, err error) {
	err = a.Pool.QueryRow(ctx, oldestPendingSQL, ids, events.LiveRun).Scan(&id, &reason)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return id, reason, unavailable(err)
}

const oldestPendingSQL = `
SELECT e.id, coalesce(o.reason, '') FROM events e LEFT JOIN LATERAL (SELECT o.status, o.reason FROM outcomes o
	WHERE o.event_id = e.id AND o.run = $2 LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed') ORDER BY o.status IS NULL, e.id LIMIT 1`

const countPendingSQL = `
SELECT count(*) FROM events e LEFT JOIN LATERAL (SELECT o.status FROM outcomes o WHERE o.event_id = e.id AND o.run = $2
	LIMIT 1) o ON true
WHERE e.id = ANY($1::bigint[]) AND (o.status IS NULL OR o.status = 'failed')`

// UnswappedRebuild tells that a run r is a rebuild that has not replaced an object of the mirror. A
// rebuild that has replaced objects cannot be cancelled, and fails only if its part of the log was
// dropped. The events of any other run that applies events are in the mirror.
const UnswappedRebuild = `r.job = 'rebuild' AND r.status <> 'done' AND NOT r.counts ? 'swapped'`

// DeadEvents selects the event_id (as o.event_id) of events that need an operator: dead in the live
// run, and in the mirror through no other run. It examines the newest 100,000 dead events. Events
// of a rebuild are in the mirror after its swap. OFFSET 0 makes the planner run one index lookup
// for each event.
const DeadEvents = `(SELECT d.event_id FROM outcomes d WHERE d.status = 'dead' AND d.run = 0 ORDER BY d.event_id DESC
	LIMIT 100000) o
WHERE NOT EXISTS (SELECT FROM outcomes a WHERE a.event_id = o.event_id AND a.run > 0
	AND a.status NOT IN ('failed', 'dead', 'ignored')
  AND NOT EXISTS (SELECT FROM runs r WHERE r.run = a.run AND ` + UnswappedRebuild + `) OFFSET 0)`
