package processor

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A look that a person has settle an object makes its row forget all that it has met, also what was received since the look began and must not be forgotten.
// That is read from the log again.

// settlingFirst is the items with those first that settle an object, the latest before the others.
func settlingFirst(items []*item) []*item {
	settles := func(it *item) bool { return it.input.Settles != 0 }
	if !slices.ContainsFunc(items, settles) {
		return items
	}
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b *item) int { return cmp.Compare(b.input.Settles, a.input.Settles) })
	return items
}

// clocksApart is how far the clock that stamps receipts may be ahead of the one that ids are made by.
const clocksApart = time.Hour

// recallSQL finds what the rows of some objects have met in a run; each object has a first and a last id.
// Each is looked for by itself: a plan that was made while the tables were empty would merge with all of the index.
const recallSQL = `
SELECT DISTINCT o.event_id FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d(object, first, last)
CROSS JOIN LATERAL (SELECT o.event_id FROM outcomes o WHERE o.object = d.object AND o.object <> 0 AND o.event_id BETWEEN d.first AND d.last AND o.run = $4 OFFSET 0) o`

// recall reads what rows have met in a run since looks began that settle them now: items that are folded again and get no outcome. ordered: events come in
// the order of their ids, and none behind the look was met. The caller holds the objects' locks. Of what cannot be read now
// nobody knows whether it counts: *UnfoldedError.
func (p *Processor) recall(ctx context.Context, tx pgx.Tx, run int64, ordered bool, items []*item, objs map[versioning.Key]*versioning.Object) ([]*item, error) {
	var objects, firsts, lasts []int64
	here := map[int64]bool{}
	for _, it := range items {
		if !it.open() {
			continue // what has its outcome is among what was met
		}
		here[it.ev.ID] = true
		if it.input.Settles <= objs[it.key].Settled || it.input.Partial != "" {
			continue
		}
		last := int64(math.MaxInt64)
		if ordered {
			last = it.ev.ID
		}
		objects, firsts, lasts = append(objects, it.lock), append(firsts, firstID(it.input.Settles)), append(lasts, last)
	}
	if len(objects) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, recallSQL, objects, firsts, lasts, run)
	if err != nil {
		return nil, fmt.Errorf("look for what %d objects have met: %w", len(objects), err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("look for what %d objects have met: %w", len(objects), err)
	}
	recs, err := events.Read(ctx, tx, slices.DeleteFunc(ids, func(id int64) bool { return here[id] }), events.AnyBody)
	if err != nil {
		return nil, err
	}
	var met []*item
	for i := range recs {
		ev := p.sourceEvent(&recs[i])
		it := p.read(p.Logger, &ev)
		if it.outcome != nil && it.outcome.status == versioning.Failed {
			return nil, fmt.Errorf("read again what the object has met since the look began: %w", refuse(it))
		}
		if it.open() && objs[it.key] != nil {
			met = append(met, it)
		}
	}
	return met, nil
}

// firstID is at or below the id of every event that was received from a time on, in microseconds.
func firstID(received int64) int64 {
	return max(0, time.UnixMicro(received).Add(-clocksApart).UnixMilli()) << 20
}
