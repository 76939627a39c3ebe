package changes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// ErrCursorEnded means that a reader must start again without a cursor. The mirror went back, after
// a restore from a backup, to a state before the changes that he has read, or the cursor belongs to
// another instance.
var ErrCursorEnded = errors.New("the cursor does not belong to the changes of this mirror, or is ahead of them, " +
	"as after a restore from a backup: start again without a cursor")

// Cursor is the position of a reader: the last number that he read, in its epoch. The zero Cursor
// is the beginning.
type Cursor struct {
	Epoch  string
	Number int64
}

// String returns the cursor as EPOCH-NUMBER, and "" for the beginning.
func (c Cursor) String() string {
	if c.Epoch == "" {
		return ""
	}
	return c.Epoch + "-" + strconv.FormatInt(c.Number, 10)
}

// MarshalText encodes a cursor as String does.
func (c Cursor) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText decodes a cursor. Errors: events.ErrInvalid.
func (c *Cursor) UnmarshalText(text []byte) (err error) {
	*c, err = ParseCursor(string(text))
	return err
}

// ParseCursor decodes a cursor. Errors: events.ErrInvalid.
func ParseCursor(text string) (Cursor, error) {
	if text == "" {
		return Cursor{}, nil
	}
	epoch, digits, found := strings.Cut(text, "-")
	number, err := strconv.ParseInt(digits, 10, 64)
	if !found || epoch == "" || err != nil || number < 0 || digits != strconv.FormatInt(number, 10) {
		return Cursor{}, fmt.Errorf("%w: %q is not a cursor of changes: use the value of next_cursor, or leave it "+
			"out to start at the beginning", events.ErrInvalid, text)
	}
	return Cursor{epoch, number}, nil
}

// Feed is the state of the numbers.
type Feed struct {
	// Newest is the newest number.
	Newest int64
	// epochs are the names of the epochs, starts the newest number when each began.
	epochs []string
	starts []int64
}

const feedSQL = `SELECT newest, epochs, epoch_starts FROM change_feed`

// ReadFeed reads the state of the numbers. Changes up to Newest can be read.
func ReadFeed(ctx context.Context, db postgres.DB) (f Feed, err error) {
	if err := db.QueryRow(ctx, feedSQL).Scan(&f.Newest, &f.epochs, &f.starts); err != nil {
		return Feed{}, fmt.Errorf("read the newest number of changes: %w", err)
	}
	return f, nil
}

// At returns the cursor of a number in the current epoch.
func (f *Feed) At(number int64) Cursor { return Cursor{f.epochs[len(f.epochs)-1], number} }

// checkNamed returns an error if a stored cursor is of an earlier epoch. After a restore, it was
// restored too: its reader has read more than it says.
func (f *Feed) checkNamed(c Cursor) error {
	if c.Epoch != "" && c.Epoch != f.At(0).Epoch || c.Number > f.Newest {
		return ErrCursorEnded
	}
	return nil
}

// Check returns the number of a cursor. A cursor of an earlier epoch is valid up to the number at
// which each later epoch began: the changes up to it are the same. Errors: ErrCursorEnded.
func (f *Feed) Check(c Cursor) (number int64, err error) {
	if c.Epoch == "" {
		return 0, nil
	}
	limit := f.Newest
	for i := len(f.epochs) - 1; i >= 0; i-- {
		if f.epochs[i] == c.Epoch {
			if c.Number > limit {
				break
			}
			return c.Number, nil
		}
		limit = min(limit, f.starts[i])
	}
	return 0, ErrCursorEnded
}
