package redaction

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/runs"
)

// The tables that have rows of objects: the mirror, what is kept of dropped days, and what a rebuild has made so far.
const (
	mirror = "objects"
	bases  = "bases"
	staged = "staged"
)

func tables() []string { return []string{mirror, bases, staged} }

// objectsSQL is a page of the objects of a source, or of one of its accounts, that show something.
const objectsSQL = `
SELECT o.account, o.object_type, o.object_id, o.updated_at, o.state, o.tie_set FROM objects o
WHERE o.source = $1 AND ($2::text IS NULL OR o.account = $2) AND (o.account, o.object_type, o.object_id) > ($3, $4, $5) AND (o.state IS NOT NULL OR o.tie_set <> '[]')
  AND o.last_event_id <= $6 AND o.version_at > -9223372036854775808
  AND ($7::timestamptz IS NULL OR coalesce((SELECT e.received_at FROM events e WHERE e.id = o.last_event_id) <= $7, true))
ORDER BY o.account, o.object_type, o.object_id LIMIT 50`

// in is a statement about the mirror, for another table.
func in(table, sql string) string { return strings.ReplaceAll(sql, " objects o", " "+table+" o") }

// row is an object as a table had it.
type row struct {
	Object
	readAt time.Time
	// shared: it names another person too, and is left.
	shared bool
}

// eachShown gives the objects that a table shows what an order looks for of, up to a bound and, unless it is nil, a time of receipt, some at a time: retention may have dropped the events
// that made them.
func (o *Order) eachShown(ctx context.Context, pool *pgxpool.Pool, table string, bound int64, received *time.Time, do func([]row) (runs.Status, error)) (runs.Status, error) {
	sources, err := o.sources(ctx, pool)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		if status, err := o.eachShownOf(ctx, pool, table, source, bound, received, do); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

// eachShownOf gives those of one source.
func (o *Order) eachShownOf(ctx context.Context, pool *pgxpool.Pool, table string, source int32, bound int64, received *time.Time,
	do func([]row) (runs.Status, error),
) (runs.Status, error) {
	last := row{Object: Object{Source: source}}
	for {
		rows, err := pool.Query(ctx, in(table, objectsSQL), source, o.Account, last.Account, last.Type, last.ID, bound, received)
		if err != nil {
			return "", fmt.Errorf("look through %s: %w", table, err)
		}
		var found []row
		var bodies [][]byte
		var state, set []byte
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&last.Account, &last.Type, &last.ID, &last.readAt, &state, &set}, func() error {
			if n++; o.wholly() || o.isOwn(last.ID) || o.shows(state) || o.setShows(set) {
				found, bodies = append(found, last), append(bodies, slices.Concat(state, []byte(" "), set))
			}
			state, set = nil, nil
			return nil
		}); err != nil {
			return "", fmt.Errorf("look through %s: %w", table, err)
		}
		for i := range found {
			f := &found[i]
			if f.shared, err = o.shared(ctx, pool, subject{f.Source, f.Account, f.Type, f.ID}, bodies[i]); err != nil {
				return "", err
			}
		}
		if n == 0 {
			return runs.Running, nil
		}
		if status, err := do(found); err != nil || status != runs.Running {
			return status, err
		}
	}
}

// shows tells whether a state has a value the order looks for, at its path as it would lie in a body.
func (o *Order) shows(state []byte) bool { return len(state) > 0 && matches(o.Finds, state) }

// setShows tells so of the states of one version.
func (o *Order) setShows(set []byte) bool {
	if mentioned(o.Finds, set) {
		return true
	}
	root, err := canonical.Parse(set)
	if err != nil {
		return false
	}
	for _, member := range root.Elements() {
		for _, state := range member.Members() {
			for i := range o.Finds {
				if o.Finds[i].below(state, o.Finds[i].steps) {
					return true
				}
			}
		}
	}
	return false
}

// shown redacts the rows of objects that show what is looked for though no event of the log does any more. A base or what is staged may show it while the mirror
// has gone on, whose row then stays.
func (w *work) shown(ctx context.Context) (runs.Status, error) {
	if !w.order.scans() {
		return runs.Running, nil
	}
	for _, table := range tables() {
		for missed := true; missed; {
			missed = false
			status, err := w.order.eachShown(ctx, w.Pool, table, w.hold.Bound, w.askedAt, func(found []row) (runs.Status, error) {
				found = slices.DeleteFunc(found, func(r row) bool { return r.shared })
				n, err := w.cover(ctx, table, found)
				if err != nil {
					return "", err
				}
				missed = missed || n < len(found)
				return w.hold.Advance(ctx, w.hold.Cursor)
			})
			if err != nil || status != runs.Running {
				return status, err
			}
		}
	}
	return runs.Running, nil
}

const copiesSQL = `SELECT redact_copies($1, $2, $3, $4, $5, $6, $7, $8)`

// cover clears rows of a table, and tells how many; of those that were written meanwhile, not all.
func (w *work) cover(ctx context.Context, table string, found []row) (n int, err error) {
	if len(found) == 0 {
		return 0, nil
	}
	objects, locks, k := make([]Object, len(found)), make([]int64, len(found)), keys{}
	read := make([]time.Time, len(found))
	for i := range found {
		objects[i], locks[i], read[i] = found[i].Object, found[i].hash(), found[i].readAt
		k.add(found[i].Object)
	}
	if table == mirror {
		return len(found), w.redact(ctx, nil, objects, nil)
	}
	if err := w.Pool.QueryRow(ctx, copiesSQL, w.hold.Run.Run, table, locks, k.sources, k.accounts, k.types, k.ids, read).Scan(&n); err != nil {
		return 0, fmt.Errorf("redact rows of %s: %w", table, err)
	}
	return n, nil
}
