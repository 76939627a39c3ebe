package reconcile

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// manyError: hints' looks have found so many objects to be missing that a person should see it.
type manyError struct{ text string }

func (e *manyError) Error() string { return e.text }

// noteTombstoneSQL notes that an object which is alive here was found to be missing; again, when.
const noteTombstoneSQL = `
INSERT INTO tombstones (source, account, object_type, object_id, at)
SELECT o.source, o.account, o.object_type, o.object_id, clock_now() FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4 AND NOT o.deleted
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET at = excluded.at`

// countTombstonesSQL counts those of the last hour and forgets the others.
const countTombstonesSQL = `
WITH old AS (DELETE FROM tombstones t WHERE t.source = $1 AND t.account = $2 AND t.object_type = $3 AND t.at < clock_now() - interval '1 hour')
SELECT count(*) FROM tombstones t WHERE t.source = $1 AND t.account = $2 AND t.object_type = $3 AND t.at >= clock_now() - interval '1 hour'`

// manyLiveSQL says whether at least so many objects of a type live; it reads no more of them.
const manyLiveSQL = `
SELECT count(*) >= $4 FROM (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND NOT o.deleted AND o.version_at > -9223372036854775808 LIMIT $4) o`

const dropTombstoneSQL = `DELETE FROM tombstones t WHERE t.source = $1 AND t.account = $2 AND t.object_type = $3 AND t.object_id = $4`

// few says whether the look of a hint may delete its object: not where more were to be deleted so within an hour, by all processes, than a sweep may without asking. Which is noted before it is
// counted, so that of several at once none is overlooked; ended between, one counts for an hour that was not deleted. Who asked for the look of one object may. Errors: *manyError.
func (h *hinted) few(ctx context.Context, one hint, d *events.Delivery) error {
	l, err := provider.DecodeLook(d.Body)
	if err != nil || !l.Missing || one.wantedBy != "" {
		return err
	}
	k := one.key
	noted, err := h.Pool.Exec(ctx, noteTombstoneSQL, k.Source, k.Account, k.Type, k.ID)
	if err != nil {
		return fmt.Errorf("note a tombstone: %w", err)
	}
	if noted.RowsAffected() == 0 { // it is deleted already
		return nil
	}
	var dead int64
	if err := h.Pool.QueryRow(ctx, countTombstonesSQL, k.Source, k.Account, k.Type).Scan(&dead); err != nil {
		return fmt.Errorf("count tombstones: %w", err)
	}
	if dead <= fewGhosts {
		return nil
	}
	var enough bool
	if err := h.Pool.QueryRow(ctx, manyLiveSQL, k.Source, k.Account, k.Type, dead*ghostShare).Scan(&enough); err != nil {
		return fmt.Errorf("count living objects: %w", err)
	}
	if enough {
		return nil
	}
	if _, err := h.Pool.Exec(ctx, dropTombstoneSQL, k.Source, k.Account, k.Type, k.ID); err != nil {
		return fmt.Errorf("forget a tombstone: %w", err)
	}
	return &manyError{fmt.Sprintf("the API says that it is missing, as it did of %d others of type %s within an hour, which is more than 1 %% of those that live here: may the key still read them? "+
		"postern reconcile %s --type %s --full asks a person before it deletes so many; postern hints add deletes this one; else looks delete %d in an hour", dead-1, k.Type, h.source.Name, k.Type, fewGhosts)}
}
