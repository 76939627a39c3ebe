package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// epoch is the start of the interval that a full list makes complete.
var epoch = time.Unix(0, 0).UTC()

// typeWatermark returns the name of the watermark of all objects of a type. A full list raises it,
// so it covers deletions.
func typeWatermark(objectType string) string { return "type " + objectType }

// versionsWatermark returns the name of the watermark of all objects of a type whose list has
// versions only. A version may not advance with every change, so some changes may be missing.
func versionsWatermark(objectType string) string { return "versions " + objectType }

// changesWatermark returns the name of the watermark of a type's changes, without deletions.
func changesWatermark(objectType string) string { return "changes " + objectType }

// listScope is a digest of what the list covers: the call for its first page, and the repositories
// in their order. With another scope the list may contain objects from before a watermark, and
// cursors are not valid.
func (s *objectScan) listScope() string {
	paged := *s.Source.API
	paged.Bulk = nil // a file lists the same objects
	c := s.lister.ListObjects(s.Source.Config, &paged, s.params.Account, s.objectType, time.Time{}, time.Time{}, "")
	return digest(append(callParts(c), s.Source.API.Repositories...))
}

// digest returns the digest of texts in their order.
func digest(texts []string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// completeRangeSQL returns the watermark of a list with the same scope.
const completeRangeSQL = `SELECT m.since, m.until FROM watermarks m WHERE m.source = $1 AND m.account = $2
	AND m.subject = $3
	AND m.scope = $4`

// completeChanges returns the interval in which the type's changes are complete for the current
// scope; zero for none.
func (s *objectScan) completeChanges(ctx context.Context) (since, until time.Time, err error) {
	return s.completeRange(ctx, changesWatermark(s.objectType), s.listScope())
}

// completeRange returns the interval in which something is complete for a scope; zero for none.
func (w *execution) completeRange(ctx context.Context, subject, scope string) (since, until time.Time, err error) {
	err = w.Pool.QueryRow(ctx, completeRangeSQL, w.params.Source, w.params.Account, subject, scope).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read the watermark of %s: %w", subject, err)
	}
	return since.UTC(), until.UTC(), nil
}

// raiseTypeWatermarksSQL joins the new interval with the stored one of the same scope. If the two
// do not touch, the stored one stays, because the time between is not complete. A new interval
// replaces one of another scope if it goes back as far.
const raiseTypeWatermarksSQL = `
INSERT INTO watermarks AS m (source, account, subject, since, until, run, recorded_at, scope)
SELECT $1, $2, w.subject, $5, $6, $7, clock_now(), s.scope FROM unnest($3::text[]) AS w(subject), object_scans s
	WHERE s.run = $7
	AND s.object_type = $4
ON CONFLICT (source, account, subject) DO UPDATE SET run = excluded.run, recorded_at = excluded.recorded_at,
	scope = excluded.scope,
  since = CASE WHEN m.scope = excluded.scope THEN least(m.since, excluded.since) ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END
WHERE m.scope = excluded.scope AND excluded.since <= m.until AND excluded.until >= m.since OR m.scope <> excluded.scope
	AND excluded.since <= m.since`

// deleteWatermarkSQL deletes a watermark that another one now includes.
const deleteWatermarkSQL = `DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.subject = $3`

// listMargin is how long before the list a row may have been observed and still count as newer than
// it. A Date has seconds only, the list may lag, and its response may be slow.
func (s *objectScan) listMargin() time.Duration {
	return time.Second + s.Source.Reader.Lag() + s.Source.Caller.MaxLatency()
}

// raiseWatermarks raises the watermarks of the type, unless an object is unrepaired or a part of
// the list was skipped. A full list raises the watermark of all objects. If the API lists changes,
// a full list and a list of changes raise the watermark of the changes. The watermark of all
// objects replaces that of versions.
func (s *objectScan) raiseWatermarks(ctx context.Context, tx pgx.Tx) error {
	since, until, watermarks := epoch, s.listedSince.Add(-s.listMargin()), []string{typeWatermark(s.objectType)}
	if s.list.VersionsOnly {
		watermarks[0] = versionsWatermark(s.objectType)
	}
	if s.list.ByChange {
		watermarks = append(watermarks, changesWatermark(s.objectType))
	}
	if !s.listsEverything() {
		since, watermarks = s.changedFrom, []string{changesWatermark(s.objectType)}
	}
	if !s.changedUntil.IsZero() && s.changedUntil.Before(until) {
		until = s.changedUntil
	}
	if s.params.DryRun || s.Unrepaired > 0 || len(s.skipped) > 0 || !since.Before(until) {
		return nil
	}
	if _, err := tx.Exec(ctx, raiseTypeWatermarksSQL, s.params.Source, s.params.Account, watermarks, s.objectType,
		since, until, s.lease.Run.ID); err != nil {
		return fmt.Errorf("raise the watermarks of type %s: %w", s.objectType, err)
	}
	if watermarks[0] != typeWatermark(s.objectType) {
		return nil
	}
	if _, err := tx.Exec(ctx, deleteWatermarkSQL, s.params.Source, s.params.Account,
		versionsWatermark(s.objectType)); err != nil {
		return fmt.Errorf("delete the versions watermark of type %s: %w", s.objectType, err)
	}
	return nil
}
