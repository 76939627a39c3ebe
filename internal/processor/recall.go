package processor

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

// recallSQL finds what the rows of some objects have met: in a run, or in the mirror, which all runs enter but rebuilds that were not swapped. Each object has a
// first and a last id. What is dead may have met its row too, if the rule said so, or owe a look. Each object is looked for by itself: a plan that was made while
// the tables were empty would merge with all of the index.
const recallSQL = `
SELECT o.event_id, bool_or(o.status <> 'dead' OR o.version IS NOT NULL) FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d(object, first, last)
CROSS JOIN LATERAL (SELECT o.event_id, o.status, o.version FROM outcomes o
  WHERE o.object = d.object AND o.object <> 0 AND o.event_id BETWEEN d.first AND d.last AND o.status NOT IN ('failed', 'ignored')
    AND (o.run = $4 OR $4 = 0 AND NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND r.job = 'rebuild' AND r.status <> 'done')) OFFSET 0) o
GROUP BY o.event_id`

// recall reads what rows have met since looks began that settle them now: items that are folded again and get no outcome. ordered: events come in
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
	into, err := metBy(ctx, tx, objects, firsts, lasts, run)
	if err != nil {
		return nil, fmt.Errorf("look for what %d objects have met: %w", len(objects), err)
	}
	ids := slices.DeleteFunc(slices.Collect(maps.Keys(into)), func(id int64) bool { return here[id] })
	recs, err := events.Read(ctx, tx, ids, events.AnyBody)
	if err != nil {
		return nil, err
	}
	var met []*item
	for i := range recs {
		ev := p.sourceEvent(&recs[i])
		it := p.read(p.Logger, &ev)
		if into[ev.ID] && it.outcome != nil && it.outcome.status == versioning.Failed {
			return nil, fmt.Errorf("read again what the object has met since the look began: %w", refuse(it))
		}
		if it.open() && objs[it.key] != nil && (into[ev.ID] || it.owesLook) { // what is dead and could be read today did not enter
			met = append(met, it)
		}
	}
	return met, nil
}

// metBy are the events that recallSQL finds, each with whether its own state entered a row.
func metBy(ctx context.Context, tx pgx.Tx, objects, firsts, lasts []int64, run int64) (map[int64]bool, error) {
	rows, err := tx.Query(ctx, recallSQL, objects, firsts, lasts, run)
	if err != nil {
		return nil, err
	}
	var id int64
	var entered bool
	into := map[int64]bool{}
	_, err = pgx.ForEachRow(rows, []any{&id, &entered}, func() error { into[id] = entered; return nil })
	return into, err
}

// firstID is at or below the id of every event that was received from a time on, in microseconds.
func firstID(received int64) int64 {
	return max(0, time.UnixMicro(received).Add(-clocksApart).UnixMilli()) << 20
}
