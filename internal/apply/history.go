package apply

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// When an operator overwrites an object, its row discards all history. Events that were received
// since the refetch began must not be discarded, so they are read from the log again.

// overwritesFirst returns the events with the overwriting refetches first, the latest of them
// before the others.
func overwritesFirst(batch []*event) []*event {
	overwrites := func(e *event) bool { return e.input.OverwriteAt != 0 }
	if !slices.ContainsFunc(batch, overwrites) {
		return batch
	}
	batch = slices.Clone(batch)
	slices.SortStableFunc(batch, func(a, b *event) int { return cmp.Compare(b.input.OverwriteAt, a.input.OverwriteAt) })
	return batch
}

// maxClockSkew is how far the clock of receipt times may be ahead of the clock that ids are made
// with.
const maxClockSkew = time.Hour

// reloadHistorySQL finds the events that are part of the rows of some objects, in one run or in the
// mirror. All runs except rebuilds that were not swapped write to the mirror. Each object has a
// first and a last id. A dead event may be part of its row too, if the version rule made it dead or
// if it requested a refetch. OFFSET 0 forces one lookup for each object: a plan that was made
// while the tables were empty would read all of the index.
const reloadHistorySQL = `
SELECT o.event_id, bool_or(o.status <> 'dead' OR o.version IS NOT NULL) FROM unnest($1::bigint[], $2::bigint[],
	$3::bigint[]) AS d(object, first, last)
CROSS JOIN LATERAL (SELECT o.event_id, o.status, o.version FROM outcomes o
  WHERE o.object = d.object AND o.object <> 0 AND o.event_id BETWEEN d.first AND d.last
  	AND o.status NOT IN ('failed', 'ignored')
    AND (o.run = $4 OR $4 = 0 AND NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run
    	AND ` + UnswappedRebuild + `)) OFFSET 0) o
GROUP BY o.event_id`

// reloadHistory reads the events that are part of a row and were received since a refetch began
// that overwrites the row now. They are reduced again and get no new outcome. ordered says that
// events come in the order of their ids, so that none after the refetch was applied. The caller
// holds the objects' locks. An event that cannot be read now gives a *NotReducedError, because its
// effect on the row is unknown.
func (a *Applier) reloadHistory(ctx context.Context, tx pgx.Tx, run int64, ordered bool, batch []*event,
	objs map[versioning.Key]*versioning.Object) ([]*event, error) {
	var objects, firsts, lasts []int64
	inBatch := map[int64]bool{}
	for _, e := range batch {
		if !e.isOpen() {
			continue // an event with an outcome is part of the history
		}
		inBatch[e.ev.ID] = true
		if e.input.OverwriteAt <= objs[e.key].OverwrittenAt || e.input.Partial != "" {
			continue
		}
		last := int64(math.MaxInt64)
		if ordered {
			last = e.ev.ID
		}
		objects, firsts, lasts = append(objects, e.lockKey), append(firsts, lowestIDAt(e.input.OverwriteAt)),
			append(lasts, last)
	}
	if len(objects) == 0 {
		return nil, nil
	}
	ownStateApplied, err := appliedEvents(ctx, tx, objects, firsts, lasts, run)
	if err != nil {
		return nil, fmt.Errorf("find the history of %d objects: %w", len(objects), err)
	}
	ids := slices.DeleteFunc(slices.Collect(maps.Keys(ownStateApplied)), func(id int64) bool { return inBatch[id] })
	recs, err := events.Read(ctx, tx, ids, events.UnlimitedBody)
	if err != nil {
		return nil, err
	}
	var reloaded []*event
	for i := range recs {
		ev := a.sourceEvent(&recs[i])
		e := a.read(&ev)
		if ownStateApplied[ev.ID] && e.outcome != nil && e.outcome.status == versioning.Failed {
			return nil, fmt.Errorf("reload the history of the object since the refetch began: %w", unreadableError(e))
		}
		// an event that was dead and can be read today was not applied
		if e.isOpen() && objs[e.key] != nil && (ownStateApplied[ev.ID] || e.refetchPending) {
			reloaded = append(reloaded, e)
		}
	}
	return reloaded, nil
}

// appliedEvents returns the events that reloadHistorySQL finds, each with whether its own state is
// part of a row.
func appliedEvents(ctx context.Context, tx pgx.Tx, objects, firsts, lasts []int64, run int64) (map[int64]bool, error) {
	var id int64
	var ownState bool
	ownStateApplied := map[int64]bool{}
	err := postgres.ForEach(ctx, tx, reloadHistorySQL, []any{objects, firsts, lasts, run}, []any{&id, &ownState},
		func() error { ownStateApplied[id] = ownState; return nil })
	return ownStateApplied, err
}

// lowestIDAt returns an id that is not above the id of any event received at or after a time, in
// microseconds.
func lowestIDAt(received int64) int64 {
	return max(0, time.UnixMicro(received).Add(-maxClockSkew).UnixMilli()) << 20
}
