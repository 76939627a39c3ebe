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

// epoch is since when what was read whole is proven.
var epoch = time.Unix(0, 0).UTC()

// typeMark is the name of a type's watermark: all objects were listed then, so that what was deleted has been seen too.
func typeMark(objectType string) string { return "type " + objectType }

// versionsMark is its name where the list tells versions alone, which are not known to move with every change: what changed under one may be missing.
func versionsMark(objectType string) string { return "versions " + objectType }

// changesMark is the name of the watermark of what changed in a type, deletions left out.
func changesMark(objectType string) string { return "changes " + objectType }

// asks is a digest of what the list tells of: how it is asked for from its beginning, page by page, and of which repositories, one after the other. With another one, objects from before a watermark
// may be told for the first time, and a cursor is of another list.
func (s *sweep) asks() string {
	paged := *s.source.API
	paged.Bulk = nil // a file tells of the same
	c := s.lister.ListObjects(s.source.Config, &paged, s.order.Account, s.objectType, time.Time{}, time.Time{}, "")
	return digest(append(lines(c), s.source.API.Repositories...))
}

// digest is one of texts in their order.
func digest(texts []string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// provenOfSQL is what is proven of a list as it is asked for now.
const provenOfSQL = `SELECT m.since, m.until FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.what = $3 AND m.scope = $4`

// known is from when until when the changes of the type are proven of all that the list tells of now; zero: nothing is.
func (s *sweep) known(ctx context.Context) (since, until time.Time, err error) {
	return s.provenOf(ctx, changesMark(s.objectType), s.asks())
}

// provenOf is from when until when something is proven of what a digest stands for; zero: nothing is.
func (w *work) provenOf(ctx context.Context, what, scope string) (since, until time.Time, err error) {
	err = w.Pool.QueryRow(ctx, provenOfSQL, w.order.Source, w.order.Account, what, scope).Scan(&since, &until)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, fmt.Errorf("read what is proven of %s: %w", what, err)
	}
	return since.UTC(), until.UTC(), nil
}

// provenTypeSQL joins what is proven with what was, of one scope; what lies between two times that do not touch is not proven, and the earlier stays. What was proven of another scope gives
// way to what goes as far back.
const provenTypeSQL = `
INSERT INTO watermarks AS m (source, account, what, since, until, run, at, scope)
SELECT $1, $2, w.what, $5, $6, $7, clock_now(), s.scope FROM unnest($3::text[]) AS w(what), sweeps s WHERE s.run = $7 AND s.object_type = $4
ON CONFLICT (source, account, what) DO UPDATE SET run = excluded.run, at = excluded.at, scope = excluded.scope,
  since = CASE WHEN m.scope = excluded.scope THEN least(m.since, excluded.since) ELSE excluded.since END,
  until = CASE WHEN m.scope = excluded.scope THEN greatest(m.until, excluded.until) ELSE excluded.until END
WHERE m.scope = excluded.scope AND excluded.since <= m.until AND excluded.until >= m.since OR m.scope <> excluded.scope AND excluded.since <= m.since`

// unmarkSQL drops a watermark that says less than another one now.
const unmarkSQL = `DELETE FROM watermarks m WHERE m.source = $1 AND m.account = $2 AND m.what = $3`

// unsure is how far before the list a row may have been seen that counts as ahead of it: a Date tells its second alone, and an answer may be late and slow.
func (s *sweep) unsure() time.Duration {
	return time.Second + s.source.Reader.Lag() + s.source.Caller.Longest()
}

// raise raises the watermarks of the type, unless something is left, or a part of the list was passed over: that of all by a whole list, and that of the changes, where the API tells them, by either. Once all is
// proven of a type, that its versions were says no more.
func (s *sweep) raise(ctx context.Context, tx pgx.Tx) error {
	since, until, what := epoch, s.began.Add(-s.unsure()), []string{typeMark(s.objectType)}
	if s.list.Blind {
		what[0] = versionsMark(s.objectType)
	}
	if s.list.ByChange {
		what = append(what, changesMark(s.objectType))
	}
	if !s.whole() {
		since, what = s.from, []string{changesMark(s.objectType)}
	}
	if !s.upTo.IsZero() && s.upTo.Before(until) {
		until = s.upTo
	}
	if s.order.DryRun || s.Left > 0 || len(s.passed) > 0 || !since.Before(until) {
		return nil
	}
	if _, err := tx.Exec(ctx, provenTypeSQL, s.order.Source, s.order.Account, what, s.objectType, since, until, s.hold.Run.Run); err != nil {
		return fmt.Errorf("raise the watermarks of type %s: %w", s.objectType, err)
	}
	if what[0] != typeMark(s.objectType) {
		return nil
	}
	if _, err := tx.Exec(ctx, unmarkSQL, s.order.Source, s.order.Account, versionsMark(s.objectType)); err != nil {
		return fmt.Errorf("drop what was proven of the versions of type %s: %w", s.objectType, err)
	}
	return nil
}
