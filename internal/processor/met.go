package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A row does not remember what has cleared its LookAfter, so an event that is applied again could owe a look for a second time, or clear one that a later
// event owes. What the row has met before says nothing new of it.

const metSQL = `SELECT event_id, status, at FROM outcomes WHERE run = 0 AND event_id = ANY($1::bigint[]) AND status IN ('applied', 'unchanged', 'stale', 'ambiguous', 'dead')`

// meet notes of items of a run which of them were applied live, where that can matter.
func (to Target) meet(ctx context.Context, tx pgx.Tx, items []*item, objs map[versioning.Key]*versioning.Object) error {
	if to.Run == events.LiveRun || to.Into != versioning.Mirror {
		return nil
	}
	byID, ids := map[int64]*item{}, []int64{}
	for _, it := range items {
		if it.open() && mayMoveLook(it, objs[it.key]) {
			byID[it.ev.ID], ids = it, append(ids, it.ev.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, metSQL, ids)
	if err != nil {
		return fmt.Errorf("read live outcomes of %d events: %w", len(ids), err)
	}
	var id int64
	var status versioning.Status
	var at time.Time
	if _, err := pgx.ForEachRow(rows, []any{&id, &status, &at}, func() error { byID[id].meetAs(status, at); return nil }); err != nil {
		return fmt.Errorf("read live outcomes of %d events: %w", len(ids), err)
	}
	return nil
}

// mayMoveLook says whether an item may change an object's LookAfter and nothing else.
func mayMoveLook(it *item, o *versioning.Object) bool {
	return o.Exists && (it.input.Partial != "" || o.LookAfter != 0 || o.HasLook())
}

// meetAs notes a live outcome if it is one that an input of the item's kind gets: a whole state that is read as a partial one today was not met as that.
func (it *item) meetAs(status versioning.Status, at time.Time) {
	partial, dead := it.input.Partial != "", status == versioning.Dead
	if dead != it.owesLook || partial && !dead && status != versioning.Ambiguous && status != versioning.Stale {
		return
	}
	it.metAt = at
}

// met says whether the object's row, as long as it has been there, has met the event. One that was made again later has not.
func (it *item) met(o *versioning.Object) bool {
	return !it.metAt.IsZero() && o.Exists && !it.metAt.Before(o.MadeAt)
}

// keepLook leaves the row's LookAfter as it was before, if nothing else has changed.
func keepLook(row, before *versioning.Row) {
	look := row.LookAfter
	row.LookAfter = before.LookAfter
	if !row.Same(before) {
		row.LookAfter = look
	}
}
