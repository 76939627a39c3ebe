package changes

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// maxCursors is how many named cursors there may be.
const maxCursors = 1000

// ErrCursorBack means that a report would move a cursor back.
var ErrCursorBack = errors.New("the cursor is further already: another reader uses it, or this one repeats an old " +
	"report. To read changes again, set rewind")

// ErrOtherReader means that the cursor belongs to another reader.
var ErrOtherReader = errors.New("another reader uses this feed cursor")

var cursorName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// NamedCursor is a cursor that Postern keeps for a reader.
type NamedCursor struct {
	Name string `json:"name"`
	// Last change that the reader has processed, as he reported it.
	Cursor string `json:"cursor"`
	// True if the reader must start again: the mirror went back, as after a restore.
	Ended bool `json:"ended"`
	// Number of changes after the cursor at most. Objects that changed several times count more
	// than once, and so do changes that the reader's filter does not select.
	LagChanges int64 `json:"lag_changes"`
	// Age of the oldest change after the cursor; 0 if there is none.
	LagSeconds float64 `json:"lag_seconds"`
	// Time since which the cursor stands still with unread changes, to 10 seconds; null if it does
	// not.
	BehindSince events.Instant `json:"behind_since"`
	// How long it may stand still with unread changes before operators are alerted; null: for ever.
	StallsAfter *string `json:"stalls_after"`
	// True if it stands still for longer than that.
	Stalled   bool           `json:"stalled"`
	CreatedAt events.Instant `json:"created_at"`
	// Time of the last report.
	MovedAt events.Instant `json:"moved_at"`
	// Token or account that reported it.
	MovedBy string `json:"moved_by"`
	at      Cursor
}

// At returns the position.
func (c *NamedCursor) At() Cursor { return c.at }

// stalledSQL is true for a named cursor c that stands still for longer than it may.
const stalledSQL = `coalesce(c.behind_since < clock_now() - c.stalls_after
	AND c.number < (SELECT f.newest FROM change_feed f), false)`

// StalledSQL selects the names of cursors that stand still for longer than they may.
const StalledSQL = `SELECT c.name FROM feed_cursors c WHERE ` + stalledSQL

const (
	cursorColumns = `
SELECT c.name, c.epoch, c.number, c.stalls_after, c.created_at, c.moved_at, c.moved_by, c.behind_since,
  ` + stalledSQL + `, greatest(coalesce((SELECT extract(epoch FROM clock_now() - x.changed_at) FROM changes x
    WHERE x.number > c.number ORDER BY x.number LIMIT 1), 0), 0)::float8
FROM feed_cursors c `

	cursorsSQL = cursorColumns + `WHERE c.name > $1 ORDER BY c.name LIMIT $2`

	showCursorSQL = cursorColumns + `WHERE c.name = $1`

	lockCursorSQL = `
SELECT c.epoch, c.number, c.moved_by, c.by_reader FROM feed_cursors c WHERE c.name = $1 FOR UPDATE`

	insertCursorSQL = `
INSERT INTO feed_cursors AS c (name, epoch, number, stalls_after, created_at, moved_at, moved_by, by_reader)
SELECT $1, $2, $3, $4, clock_now(), clock_now(), $5, $7 WHERE (SELECT count(*) FROM feed_cursors) < $6
ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, number = excluded.number, moved_at = excluded.moved_at,
  moved_by = excluded.moved_by, by_reader = excluded.by_reader`

	moveCursorSQL = `
UPDATE feed_cursors c SET epoch = $2, number = $3, stalls_after = CASE WHEN $6 THEN $4 ELSE c.stalls_after END,
  moved_at = clock_now(), moved_by = $5, by_reader = $7,
  behind_since = CASE WHEN (c.epoch, c.number) = ($2, $3) THEN c.behind_since END
WHERE c.name = $1`

	removeCursorSQL = `DELETE FROM feed_cursors c WHERE c.name = $1`

	// observeSQL records which cursors are behind.
	observeSQL = `
UPDATE feed_cursors c SET behind_since = clock_now() FROM change_feed f
WHERE c.behind_since IS NULL AND c.number < f.newest`
)

// Cursors lists the named cursors by name. Errors: events.ErrInvalid.
func Cursors(ctx context.Context, db postgres.DB, cursor string, limit int) (page events.Page[NamedCursor], err error) {
	feed, err := ReadFeed(ctx, db)
	if err != nil {
		return page, err
	}
	return events.ReadPage("list feed cursors", cursor, limit, "", func(c *NamedCursor) string { return c.Name },
		func(after string, limit int) ([]NamedCursor, error) {
			return postgres.Collect(ctx, db, feed.scanCursor, cursorsSQL, after, limit)
		})
}

// ShowCursor returns a named cursor. Errors: events.ErrNotFound.
func ShowCursor(ctx context.Context, db postgres.DB, name string) (*NamedCursor, error) {
	feed, err := ReadFeed(ctx, db)
	var found []NamedCursor
	if err == nil {
		found, err = postgres.Collect(ctx, db, feed.scanCursor, showCursorSQL, name)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("show feed cursor %s: %w", name, err)
	case len(found) == 0:
		return nil, fmt.Errorf("feed cursor %q: %w", name, events.ErrNotFound)
	}
	return &found[0], nil
}

func (f *Feed) scanCursor(row pgx.CollectableRow) (c NamedCursor, err error) {
	var stallsAfter *time.Duration
	if err := row.Scan(&c.Name, &c.at.Epoch, &c.at.Number, &stallsAfter, &c.CreatedAt, &c.MovedAt, &c.MovedBy,
		&c.BehindSince, &c.Stalled, &c.LagSeconds); err != nil {
		return c, err
	}
	if stallsAfter != nil {
		c.StallsAfter = new(stallsAfter.String())
	}
	ended := f.checkNamed(c.at)
	c.Cursor, c.Ended, c.LagChanges = c.at.String(), ended != nil, max(f.Newest-c.at.Number, 0)
	return c, nil
}

// CursorReport is a report of a reader.
type CursorReport struct {
	Name string
	// After is the new position; nil: the stored one, or the beginning. With Latest it is the
	// newest change.
	After  *Cursor
	Latest bool
	// StallsAfter replaces the stored value if it is not nil; 0: no alert.
	StallsAfter *time.Duration
	// Rewind allows a position before the stored one.
	Rewind bool
	By     string
	// ByReader: By is a token without the role operator. It cannot move a cursor that another such
	// token moved last. After a report of an operator, the cursor belongs to the next token that
	// reports.
	ByReader bool
}

// MoveCursor stores a position under a name, for which it makes a cursor if there is none. It
// reports whether the audit must have an entry: the cursor was moved back, or another caller moved
// it before. Errors: events.ErrInvalid, ErrCursorEnded, ErrCursorBack, ErrOtherReader.
func MoveCursor(ctx context.Context, tx pgx.Tx, r CursorReport) (audited bool, err error) {
	if !cursorName.MatchString(r.Name) {
		return false, fmt.Errorf("%w: a cursor's name has up to 63 characters a-z 0-9 . _ -, and begins with a letter "+
			"or digit", events.ErrInvalid)
	}
	var stored Cursor
	var movedBy string
	var byReader bool
	err = tx.QueryRow(ctx, lockCursorSQL, r.Name).Scan(&stored.Epoch, &stored.Number, &movedBy, &byReader)
	exists := err == nil
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, err
	}
	if r.ByReader && byReader && movedBy != r.By {
		return false, ErrOtherReader
	}
	feed, err := ReadFeed(ctx, tx) // after the lock: it must not be older than the stored cursor
	if err != nil {
		return false, err
	}
	at := feed.At(0)
	switch {
	case r.Latest:
		at = feed.At(feed.Newest)
	case r.After != nil:
		number, err := feed.Check(*r.After)
		if err != nil {
			return false, err
		}
		at = feed.At(number)
	case exists:
		at = stored
	}
	audited = exists && movedBy != r.By
	if at.Number < stored.Number {
		audited = true
		if feed.checkNamed(stored) == nil && !r.Rewind { // the reader of an ended one starts again
			return true, ErrCursorBack
		}
	}
	if exists {
		_, err = tx.Exec(ctx, moveCursorSQL, r.Name, at.Epoch, at.Number, positive(r.StallsAfter), r.By,
			r.StallsAfter != nil, r.ByReader)
		return audited, err
	}
	tag, err := tx.Exec(ctx, insertCursorSQL, r.Name, at.Epoch, at.Number, positive(r.StallsAfter), r.By, maxCursors,
		r.ByReader)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("%w: there are %d feed cursors already: remove unused ones with postern feed "+
			"remove", events.ErrInvalid, maxCursors)
	}
	return false, err
}

func positive(d *time.Duration) *time.Duration {
	if d == nil || *d <= 0 {
		return nil
	}
	return d
}

// RemoveCursor deletes a named cursor. Errors: events.ErrNotFound.
func RemoveCursor(ctx context.Context, tx pgx.Tx, name string) error {
	tag, err := tx.Exec(ctx, removeCursorSQL, name)
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("feed cursor %q: %w", name, events.ErrNotFound)
	}
	return err
}

// ObserveCursors records since when cursors are behind, and returns the first, by name.
func ObserveCursors(ctx context.Context, pool *pgxpool.Pool, limit int) ([]NamedCursor, error) {
	if _, err := pool.Exec(ctx, observeSQL); err != nil {
		return nil, fmt.Errorf("observe feed cursors: %w", err)
	}
	page, err := Cursors(ctx, pool, "", limit)
	return page.Items, err
}

// endEpochsSQL begins an epoch that shares no change with those before.
const endEpochsSQL = `
UPDATE change_feed f SET epochs = (f.epochs || new_epoch())[greatest(cardinality(f.epochs) + 2 - $1, 1):],
  epoch_starts = (f.epoch_starts || 0::bigint)[greatest(cardinality(f.epochs) + 2 - $1, 1):]
RETURNING f.epochs[cardinality(f.epochs)]`

// EndEpochs begins a new epoch in which no cursor of an earlier one is valid, and returns its name.
// It serves a restore that Number cannot detect.
func EndEpochs(ctx context.Context, tx pgx.Tx) (epoch string, err error) {
	err = tx.QueryRow(ctx, endEpochsSQL, keptEpochs).Scan(&epoch)
	return epoch, err
}
