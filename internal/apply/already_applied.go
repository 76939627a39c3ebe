package apply

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A row does not record which event cleared its RefetchAfter. An event that is applied again could
// therefore request a refetch a second time, or clear a request by a later event. Events that are
// already part of the row must not change RefetchAfter.

const liveOutcomesSQL = `SELECT event_id, status, at FROM outcomes WHERE run = 0 AND event_id = ANY($1::bigint[])
	AND status IN ('applied', 'unchanged', 'stale', 'ambiguous', 'dead')`

// loadLiveOutcomes sets appliedLiveAt of the events of a run that may change only RefetchAfter.
func (to *Target) loadLiveOutcomes(ctx context.Context, tx pgx.Tx, batch []*event,
	objs map[versioning.Key]*versioning.Object) error {
	if to.Run == events.LiveRun || !to.toMirror() {
		return nil
	}
	byID, ids := map[int64]*event{}, []int64{}
	for _, e := range batch {
		if e.isOpen() && mayChangeRefetchOnly(e, objs[e.key]) {
			byID[e.ev.ID], ids = e, append(ids, e.ev.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var id int64
	var status versioning.Status
	var at time.Time
	if err := postgres.ForEach(ctx, tx, liveOutcomesSQL, []any{ids}, []any{&id, &status, &at},
		func() error { byID[id].setLiveOutcome(status, at); return nil }); err != nil {
		return fmt.Errorf("read live outcomes of %d events: %w", len(ids), err)
	}
	return nil
}

// mayChangeRefetchOnly reports whether an event may change an object's RefetchAfter and nothing
// else.
func mayChangeRefetchOnly(e *event, o *versioning.Object) bool {
	return o.Exists && (e.input.Partial != "" || o.RefetchAfter != 0 || o.HasRefetch())
}

// setLiveOutcome sets appliedLiveAt if the live outcome fits the event as it is read now. An event
// that was read as a whole state then, and is partial now, was not applied as a partial one.
func (e *event) setLiveOutcome(status versioning.Status, at time.Time) {
	partial, dead := e.input.Partial != "", status == versioning.Dead
	if dead != e.refetchPending || partial && !dead && status != versioning.Ambiguous && status != versioning.Stale {
		return
	}
	e.appliedLiveAt = at
}

// alreadyApplied reports whether the event is part of the object's row. If the row was created
// after the event was applied live, it is not.
func (e *event) alreadyApplied(o *versioning.Object) bool {
	return !e.appliedLiveAt.IsZero() && o.Exists && !e.appliedLiveAt.Before(o.CreatedAt)
}

// restoreRefetchAfter keeps the row's previous RefetchAfter if nothing else has changed.
func restoreRefetchAfter(row, before *versioning.Row) {
	refetchAfter := row.RefetchAfter
	row.RefetchAfter = before.RefetchAfter
	if !row.Equal(before) {
		row.RefetchAfter = refetchAfter
	}
}
