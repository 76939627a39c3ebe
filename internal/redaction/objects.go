package redaction

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// The tables with rows of objects: the mirror, the retained objects of dropped partitions, and the
// staged objects of a rebuild.
const (
	mirrorTable   = "objects"
	retainedTable = "retained_objects"
	stagedTable   = "staged_objects"
)

func tables() []string { return []string{mirrorTable, retainedTable, stagedTable} }

// objectsSQL is a page of the objects of a source, or of one of its accounts, that have a state.
const objectsSQL = `
SELECT o.account, o.object_type, o.object_id, o.updated_at, o.state, o.tied_states FROM objects o
WHERE o.source = $1 AND ($2::text IS NULL OR o.account = $2) AND (o.account, o.object_type, o.object_id) > ($3, $4, $5)
	AND (o.state IS NOT NULL OR o.tied_states <> '[]')
  AND o.last_event_id <= $6 AND o.version_at > -9223372036854775808
  AND ($7::timestamptz IS NULL OR coalesce((SELECT e.received_at FROM events e WHERE e.id = o.last_event_id) <= $7,
  	true))
ORDER BY o.account, o.object_type, o.object_id LIMIT 50`

// forTable returns a statement about the mirror for another table.
func forTable(table, sql string) string { return strings.ReplaceAll(sql, " objects o", " "+table+" o") }

// objectRow is an object in a table.
type objectRow struct {
	Object
	readAt time.Time
	// namesOthers reports that it names another person too, and stays.
	namesOthers bool
}

// eachMatchingObject calls do with batches of the matching objects of a table, up to a bound and,
// unless nil, a time of receipt. The events of these objects may be in dropped partitions.
func (o *Params) eachMatchingObject(ctx context.Context, pool *pgxpool.Pool, table string, bound int64,
	received *time.Time, do func([]objectRow) (runs.Status, error)) (runs.Status, error) {
	sources, err := o.sources(ctx, pool)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		if status, err := o.eachMatchingObjectOf(ctx, pool, table, source, bound, received, do); err != nil ||
			status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

// eachMatchingObjectOf is eachMatchingObject for one source.
func (o *Params) eachMatchingObjectOf(ctx context.Context, pool *pgxpool.Pool, table string, source int32, bound int64,
	received *time.Time, do func([]objectRow) (runs.Status, error)) (runs.Status, error) {
	last := objectRow{Object: Object{Source: source}}
	for {
		var found []objectRow
		var bodies [][]byte
		var state, set []byte
		n := 0
		if err := postgres.ForEach(ctx, pool, forTable(table, objectsSQL), []any{source, o.Account, last.Account,
			last.Type, last.ID, bound, received}, []any{&last.Account, &last.Type, &last.ID, &last.readAt, &state,
			&set}, func() error {
			if n++; o.takesWholeAccount() || o.isSearched(last.ID) || o.matchesState(state) ||
				o.matchesTiedStates(set) {
				found, bodies = append(found, last), append(bodies, slices.Concat(state, []byte(" "), set))
			}
			state, set = nil, nil
			return nil
		}); err != nil {
			return "", fmt.Errorf("search %s: %w", table, err)
		}
		for i := range found {
			f := &found[i]
			var err error
			if f.namesOthers, err = o.namesOthers(ctx, pool, subject{f.Source, f.Account, f.Type, f.ID},
				bodies[i]); err != nil {
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

// matchesState reports whether a state contains a searched value, at its path as in a body.
func (o *Params) matchesState(state []byte) bool {
	return len(state) > 0 && matchesAny(o.Matchers, state)
}

// matchesTiedStates reports the same for the tied states of a version.
func (o *Params) matchesTiedStates(set []byte) bool {
	if mentionsAny(o.Matchers, set) {
		return true
	}
	root, err := canonical.Parse(set)
	if err != nil {
		return false
	}
	for _, member := range root.Elements() {
		for _, state := range member.Members() {
			for i := range o.Matchers {
				if o.Matchers[i].matchesBelow(state, o.Matchers[i].steps) {
					return true
				}
			}
		}
	}
	return false
}

// redactObjects clears the rows of objects that still contain a searched value although no event of
// the log does. A retained or staged object may contain it after the mirror has changed; then the
// mirror's row stays.
func (w *execution) redactObjects(ctx context.Context) (runs.Status, error) {
	if !w.params.searchesBodies() {
		return runs.Running, nil
	}
	for _, table := range tables() {
		for missed := true; missed; {
			missed = false
			status, err := w.params.eachMatchingObject(ctx, w.Pool, table, w.lease.Bound, w.requestedAt,
				func(found []objectRow) (runs.Status, error) {
					found = slices.DeleteFunc(found, func(r objectRow) bool { return r.namesOthers })
					n, err := w.redactRows(ctx, table, found)
					if err != nil {
						return "", err
					}
					missed = missed || n < len(found)
					return w.lease.Advance(ctx, w.lease.Cursor)
				})
			if err != nil || status != runs.Running {
				return status, err
			}
		}
	}
	return runs.Running, nil
}

const redactCopiesSQL = `SELECT redact_copies($1, $2, $3, $4, $5, $6, $7, $8)`

// redactRows clears rows of a table and returns their number. It skips rows that were written after
// they were read.
func (w *execution) redactRows(ctx context.Context, table string, found []objectRow) (n int, err error) {
	if len(found) == 0 {
		return 0, nil
	}
	objects, locks, k := make([]Object, len(found)), make([]int64, len(found)), keys{}
	read := make([]time.Time, len(found))
	for i := range found {
		objects[i], locks[i], read[i] = found[i].Object, found[i].hash(), found[i].readAt
		k.add(found[i].Object)
	}
	if table == mirrorTable {
		return len(found), w.redact(ctx, nil, objects, nil)
	}
	if err := w.Pool.QueryRow(ctx, redactCopiesSQL, w.lease.Run.ID, table, locks, k.sources, k.accounts, k.types, k.ids,
		read).Scan(&n); err != nil {
		return 0, fmt.Errorf("redact rows of %s: %w", table, err)
	}
	return n, nil
}
