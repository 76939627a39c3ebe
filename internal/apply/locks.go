package apply

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
func (a *Applier) LockKeys(ctx context.Context, ids []int64) (locks []int64, err error) {
	err = a.readEach(ctx, ids, func(it *item) { locks = append(locks, it.lockKey) })
	return locks, err
}

// EventsWithState returns those of the given events whose state matches, in the form in which a
// table of objects would store it.
func (a *Applier) EventsWithState(ctx context.Context, ids []int64, matches func(state []byte) bool) (found []int64,
	err error) {
	err = a.readEach(ctx, ids, func(it *item) {
		if it.outcome == nil && matches(it.input.State.JSON) {
			found = append(found, it.ev.ID)
		}
	})
	return found, err
}

// readEach calls do with each of the given events as its provider reads it. It holds one large body
// at a time.
func (a *Applier) readEach(ctx context.Context, ids []int64, do func(*item)) error {
	evs, err := a.Events(ctx, ids, maxInlineBody)
	if err != nil {
		return err
	}
	for _, ev := range evs {
		one := []stream.Event{ev}
		if err := a.fetchBodies(ctx, a.Pool, one); err != nil {
			return err
		}
		do(a.read(a.Logger, &one[0]))
	}
	return nil
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
