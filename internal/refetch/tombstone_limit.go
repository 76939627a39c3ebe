package refetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// tooManyTombstonesError: refetches have reported so many objects as missing that an operator
// should check it.
type tooManyTombstonesError struct{ text string }

func (e *tooManyTombstonesError) Error() string { return e.text }

// lockTombstonesSQL serializes the transactions that count tombstones of a type. Of many concurrent
// tombstones, the first are therefore written.
const lockTombstonesSQL = `SELECT pg_advisory_xact_lock(hashtextextended('postern tombstones ' || $1::int || ' ' ||
	$2::text || ' ' || $3::text, 0))`

// recordTombstoneSQL records that the API reported an object as missing, or updates the time. It
// records nothing if the object is deleted in the mirror or not in it.
const recordTombstoneSQL = `
INSERT INTO recent_missing (source, account, object_type, object_id, at)
SELECT o.source, o.account, o.object_type, o.object_id, clock_now() FROM objects o WHERE o.source = $1
	AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4 AND NOT o.deleted
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET at = excluded.at`

// countTombstonesSQL counts the recorded objects of the last hour and deletes the older records.
const countTombstonesSQL = `
WITH old AS (DELETE FROM recent_missing t WHERE t.source = $1 AND t.account = $2 AND t.object_type = $3
	AND t.at < clock_now() - interval '1 hour')
SELECT count(*) FROM recent_missing t WHERE t.source = $1 AND t.account = $2 AND t.object_type = $3
	AND t.at >= clock_now() - interval '1 hour'`

// hasManyLivingSQL returns whether at least a number of objects of a type are alive; it reads no
// more of them.
const hasManyLivingSQL = `
SELECT count(*) >= $4 FROM (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3
	AND NOT o.deleted AND o.version_at > -9223372036854775808 LIMIT $4) o`

// checkTombstoneLimit checks whether a refetch may delete its object. Within an hour, refetches of
// all processes together may delete no more objects than a scan may without approval. It records
// and counts in one transaction, one per type at a time. If the process ends after that, an object
// that was not deleted counts for an hour. A manual refetch is not limited. Errors:
// *tooManyTombstonesError.
func (h *SourceRefetcher) checkTombstoneLimit(ctx context.Context, one refetchRequest, d *events.Delivery) error {
	l, err := provider.DecodeRefetch(d.Body)
	if err != nil || !l.Missing || one.requestedBy != "" {
		return err
	}
	err = pgx.BeginFunc(ctx, h.Pool, func(tx pgx.Tx) error { return h.countTombstone(ctx, tx, one) })
	if many := (*tooManyTombstonesError)(nil); err != nil && !errors.As(err, &many) {
		return fmt.Errorf("count tombstones: %w", err)
	}
	return err
}

// countTombstone records a tombstone and counts those of the last hour. With an error it records
// nothing.
func (h *SourceRefetcher) countTombstone(ctx context.Context, tx pgx.Tx, one refetchRequest) error {
	k := one.key
	if _, err := tx.Exec(ctx, lockTombstonesSQL, k.Source, k.Account, k.Type); err != nil {
		return err
	}
	recorded, err := tx.Exec(ctx, recordTombstoneSQL, k.Source, k.Account, k.Type, k.ID)
	if err != nil || recorded.RowsAffected() == 0 { // it is already deleted
		return err
	}
	var recent int64
	if err := tx.QueryRow(ctx, countTombstonesSQL, k.Source, k.Account, k.Type).Scan(&recent); err != nil ||
		recent <= ApprovalMinimum {
		return err
	}
	var enough bool
	if err := tx.QueryRow(ctx, hasManyLivingSQL, k.Source, k.Account, k.Type,
		recent*ApprovalDivisor).Scan(&enough); err != nil ||
		enough {
		return err
	}
	return &tooManyTombstonesError{fmt.Sprintf("the API reports it as missing, like %d others of type %s within an "+
		"hour. This is more than 1 %% of the living ones in the mirror. Check that the key can still read them. "+
		"postern reconcile %s --type %s --full asks for approval; postern refetches add deletes only this one. "+
		"Without an approval, refetches delete at most %d in an hour", recent-1, k.Type, h.Source.Name, k.Type,
		ApprovalMinimum)}
}

// An operator must approve tombstones that are more than ApprovalMinimum and more than one in
// ApprovalDivisor of the living objects. This applies to each type, and to all types of the run
// together. Tombstones that are already approved do not count.
const ApprovalMinimum, ApprovalDivisor = 20, 100
