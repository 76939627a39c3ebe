package redaction

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// objectsSQL is a page of the objects of a source, or of one of its accounts, that show something.
const objectsSQL = `
SELECT o.account, o.object_type, o.object_id, o.state, o.tie_set FROM objects o
WHERE o.source = $1 AND ($2::text IS NULL OR o.account = $2) AND (o.account, o.object_type, o.object_id) > ($3, $4, $5) AND (o.state IS NOT NULL OR o.tie_set <> '[]')
ORDER BY o.account, o.object_type, o.object_id LIMIT 50`

// eachShown gives the objects that show what an order looks for, some at a time: retention may have dropped the events that made them.
func (o *Order) eachShown(ctx context.Context, pool *pgxpool.Pool, do func([]Object) (runs.Status, error)) (runs.Status, error) {
	last := Object{Source: o.Source}
	for {
		rows, err := pool.Query(ctx, objectsSQL, o.Source, events.Optional(o.Account), last.Account, last.Type, last.ID)
		if err != nil {
			return "", fmt.Errorf("look through objects: %w", err)
		}
		var found []Object
		var state, set []byte
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&last.Account, &last.Type, &last.ID, &state, &set}, func() error {
			if n++; o.wholly() || o.shows(state) || o.setShows(set) {
				found = append(found, last)
			}
			return nil
		}); err != nil {
			return "", fmt.Errorf("look through objects: %w", err)
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

// shown redacts the rows of objects that show what is looked for though no event of the log does any more.
func (w *work) shown(ctx context.Context) (runs.Status, error) {
	if !w.order.scans() {
		return runs.Running, nil
	}
	return w.order.eachShown(ctx, w.Pool, func(found []Object) (runs.Status, error) {
		if len(found) > 0 {
			if err := w.redact(ctx, nil, found, nil); err != nil {
				return "", err
			}
		}
		return w.hold.Advance(ctx, w.hold.Cursor)
	})
}

// request clears the event that asked for all this, where that was among what was chosen. It goes last: of a run that fails or is cancelled a person must be able to read what was asked for.
func (w *work) request(ctx context.Context) (runs.Status, error) {
	asked := []int64{w.order.RequestedBy}
	if !slices.Contains(w.order.Events, asked[0]) {
		if asked[0] == 0 || !w.order.scans() {
			return runs.Running, nil
		}
		var err error
		if asked, err = w.order.choose(ctx, w.Pool, asked); err != nil {
			return "", err
		}
	}
	return runs.Running, w.clear(ctx, asked, nil, nil)
}
