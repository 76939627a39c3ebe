package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// manyError: hints' looks have found so many objects to be missing that a person should see it.
type manyError struct{ text string }

func (e *manyError) Error() string { return e.text }

// orderTombstonesSQL has those who count wait for each other, so that of many at once the first are believed.
const orderTombstonesSQL = `SELECT pg_advisory_xact_lock(hashtextextended('postern tombstones ' || $1::int || ' ' || $2::text || ' ' || $3::text, 0))`

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

// few says whether the look of a hint may delete its object: not where more were to be deleted so within an hour, by all processes, than a sweep may without asking. It is noted and counted in one
// transaction, one of a type after the other; ended after that, one counts for an hour that was not deleted. Who asked for the look of one object may. Errors: *manyError.
func (h *hinted) few(ctx context.Context, one hint, d *events.Delivery) error {
	l, err := provider.DecodeLook(d.Body)
	if err != nil || !l.Missing || one.wantedBy != "" {
		return err
	}
	err = pgx.BeginFunc(ctx, h.Pool, func(tx pgx.Tx) error { return h.counted(ctx, tx, one) })
	if many := (*manyError)(nil); err != nil && !errors.As(err, &many) {
		return fmt.Errorf("count tombstones: %w", err)
	}
	return err
}

// counted notes a tombstone and counts those of the last hour. With an error nothing is noted.
func (h *hinted) counted(ctx context.Context, tx pgx.Tx, one hint) error {
	k := one.key
	if _, err := tx.Exec(ctx, orderTombstonesSQL, k.Source, k.Account, k.Type); err != nil {
		return err
	}
	noted, err := tx.Exec(ctx, noteTombstoneSQL, k.Source, k.Account, k.Type, k.ID)
	if err != nil || noted.RowsAffected() == 0 { // it is deleted already
		return err
	}
	var dead int64
	if err := tx.QueryRow(ctx, countTombstonesSQL, k.Source, k.Account, k.Type).Scan(&dead); err != nil || dead <= fewGhosts {
		return err
	}
	var enough bool
	if err := tx.QueryRow(ctx, manyLiveSQL, k.Source, k.Account, k.Type, dead*ghostShare).Scan(&enough); err != nil || enough {
		return err
	}
	return &manyError{fmt.Sprintf("the API says that it is missing, as it did of %d others of type %s within an hour, which is more than 1 %% of those that live here: may the key still read them? "+
		"postern reconcile %s --type %s --full asks a person before it deletes so many; postern hints add deletes this one; else looks delete %d in an hour", dead-1, k.Type, h.source.Name, k.Type, fewGhosts)}
}
