package processor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Locks are the locks that applying events of the log takes: the hashes of their objects, or the ids of those that concern none here. Whoever holds them knows
// that none of the events is being applied.
func (p *Processor) Locks(ctx context.Context, ids []int64) ([]int64, error) {
	recs, err := p.records(ctx, ids, smallBody)
	if err != nil {
		return nil, err
	}
	locks := make([]int64, 0, len(recs))
	for i := range recs {
		one := []stream.Event{p.sourceEvent(&recs[i])}
		if err := p.fetchBodies(ctx, p.Pool, one); err != nil {
			return nil, err
		}
		locks = append(locks, p.read(p.Logger, &one[0]).lock)
	}
	return locks, nil
}

// Telling are those events of the log that tell a state which is looked for, as it would enter a table of objects.
func (p *Processor) Telling(ctx context.Context, ids []int64, lookedFor func(state []byte) bool) (found []int64, err error) {
	recs, err := p.records(ctx, ids, smallBody)
	if err != nil {
		return nil, err
	}
	for i := range recs {
		one := []stream.Event{p.sourceEvent(&recs[i])}
		if err := p.fetchBodies(ctx, p.Pool, one); err != nil {
			return nil, err
		}
		if it := p.read(p.Logger, &one[0]); it.outcome == nil && lookedFor(it.input.State.JSON) {
			found = append(found, it.ev.ID)
		}
	}
	return found, nil
}

// LockObjects takes the locks that applying events of objects to the mirror takes, until the transaction ends.
func LockObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	items := make([]*item, len(keys))
	for i, k := range keys {
		items[i] = &item{key: k, lock: k.Hash()}
	}
	return lock(ctx, tx, versioning.Mirror, items, true)
}

const redactedSQL = `SELECT r.event FROM redacted r WHERE r.event = ANY($1::bigint[])`

// forget makes events ignored that were redacted after they were read, under the locks that whoever redacts takes. Live it is not asked: there each has got an outcome.
func forget(ctx context.Context, tx pgx.Tx, items []*item) error {
	ids := make([]int64, len(items))
	for i, it := range items {
		ids[i] = it.ev.ID
	}
	rows, err := tx.Query(ctx, redactedSQL, ids)
	if err != nil {
		return fmt.Errorf("look for redacted events: %w", err)
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look for redacted events: %w", err)
	}
	for _, it := range items {
		if slices.Contains(gone, it.ev.ID) {
			it.key, it.lock = versioning.Key{Source: it.key.Source}, it.ev.ID
			it.outcome, it.owesLook = redacted(), false
		}
	}
	return nil
}

// redacted is the outcome of an event that was redacted.
func redacted() *outcome {
	return &outcome{status: versioning.Ignored, reason: "the event was redacted"}
}
