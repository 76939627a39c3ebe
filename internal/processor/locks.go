package processor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// LockKeys returns the keys of the locks that applying events of the log takes: the hashes of their
// objects, or the event ids if they concern no object. While a caller holds these locks, none of
// the events is being applied.
func (p *Processor) LockKeys(ctx context.Context, ids []int64) ([]int64, error) {
	recs, err := p.records(ctx, ids, maxInlineBody)
	if err != nil {
		return nil, err
	}
	locks := make([]int64, 0, len(recs))
	for i := range recs {
		one := []stream.Event{p.sourceEvent(&recs[i])}
		if err := p.fetchBodies(ctx, p.Pool, one); err != nil {
			return nil, err
		}
		locks = append(locks, p.read(p.Logger, &one[0]).lockKey)
	}
	return locks, nil
}

// EventsWithState returns those of the given events whose state matches, in the form in which a
// table of objects would store it.
func (p *Processor) EventsWithState(ctx context.Context, ids []int64, matches func(state []byte) bool) (found []int64,
	err error) {
	recs, err := p.records(ctx, ids, maxInlineBody)
	if err != nil {
		return nil, err
	}
	for i := range recs {
		one := []stream.Event{p.sourceEvent(&recs[i])}
		if err := p.fetchBodies(ctx, p.Pool, one); err != nil {
			return nil, err
		}
		if it := p.read(p.Logger, &one[0]); it.outcome == nil && matches(it.input.State.JSON) {
			found = append(found, it.ev.ID)
		}
	}
	return found, nil
}

// LockObjects takes the locks of objects in the mirror, as applying does, until the transaction
// ends.
func LockObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	items := make([]*item, len(keys))
	for i, k := range keys {
		items[i] = &item{key: k, lockKey: k.Hash()}
	}
	return lock(ctx, tx, versioning.Mirror, items, true)
}

const redactedSQL = `SELECT r.event FROM redacted_events r WHERE r.event = ANY($1::bigint[])`

// ignoreRedacted makes events ignored that were redacted after they were read. The caller holds the
// locks that a redaction takes. Live events do not need this: a redaction gives each an outcome.
func ignoreRedacted(ctx context.Context, tx pgx.Tx, items []*item) error {
	ids := make([]int64, len(items))
	for i, it := range items {
		ids[i] = it.ev.ID
	}
	rows, err := tx.Query(ctx, redactedSQL, ids)
	if err != nil {
		return fmt.Errorf("find redacted events: %w", err)
	}
	redactedIDs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("find redacted events: %w", err)
	}
	for _, it := range items {
		if slices.Contains(redactedIDs, it.ev.ID) {
			it.key, it.lockKey = versioning.Key{Source: it.key.Source}, it.ev.ID
			it.outcome, it.refetchPending = redacted(), false
		}
	}
	return nil
}

// redacted returns the outcome of a redacted event.
func redacted() *outcome {
	return &outcome{status: versioning.Ignored, reason: "the event was redacted"}
}
