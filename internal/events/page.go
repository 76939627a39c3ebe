package events

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The bounds of a page of any list.
const (
	// DefaultLimit is the number of items of a page if none is given.
	DefaultLimit = 50
	// MaxLimit is the maximum number of items of a page.
	MaxLimit = 1000
	// maxScannedRows is how many rows one page reads. A page may be short and have a cursor to
	// continue, so that a selective filter does not make one call walk the whole log.
	maxScannedRows = 10_000
)

// ErrInvalid means that a filter, limit or cursor cannot be used; the message says why.
var ErrInvalid = errors.New("invalid")

// Page is a part of a list.
type Page[T any] struct {
	Items []T
	// Next is the cursor of the following page, "" if this is the last. A page may be short or
	// empty and still have one.
	Next string
	// SearchedTo is how far back a search of contents has read, if it has not read everything; else
	// zero.
	SearchedTo Instant
}

// MarshalJSON writes {"items": [...], "next_cursor": "..." or null}, and "searched_back_to" if a
// search is not complete.
func (p Page[T]) MarshalJSON() ([]byte, error) {
	out := struct {
		Items []T     `json:"items"`
		Next  *string `json:"next_cursor"`
		To    Instant `json:"searched_back_to,omitzero"`
	}{Items: p.Items, To: p.SearchedTo}
	if out.Items == nil {
		out.Items = []T{}
	}
	if p.Next != "" {
		out.Next = &p.Next
	}
	return json.Marshal(out)
}

// SourceInterval returns the first and the last source number of a list of one source or, with 0,
// of all.
func SourceInterval(source int32) (first, last int32) {
	if source == 0 {
		return 1, 1<<31 - 1
	}
	return source, source
}

// Instant is a time that is written as RFC 3339 in UTC with microseconds, and as null if it is
// zero.
type Instant struct{ time.Time }

// ScanTimestamptz reads a column; null becomes zero.
func (i *Instant) ScanTimestamptz(v pgtype.Timestamptz) error {
	if v.InfinityModifier != pgtype.Finite {
		return fmt.Errorf("the time is %s", v.InfinityModifier)
	}
	i.Time = v.Time
	return nil
}

// String returns the JSON form without quotes; "" for zero.
func (i Instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.UTC().Format("2006-01-02T15:04:05.000000Z")
}

// MarshalJSON writes the time or null.
func (i Instant) MarshalJSON() ([]byte, error) {
	if i.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + i.String() + `"`), nil
}

// MakeCursor encodes the end of a page. Callers pass it back unchanged.
func MakeCursor(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		return "" // parts are numbers and strings, which always marshal
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ReadCursor decodes a cursor into pointers. An empty cursor leaves them unchanged. Errors:
// ErrInvalid.
func ReadCursor(cursor string, parts ...any) error {
	if cursor == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) > 4096 {
		return fmt.Errorf("%w cursor: use the next_cursor of the previous page unchanged", ErrInvalid)
	}
	var raw []json.RawMessage
	err = json.Unmarshal(b, &raw)
	if err == nil && len(raw) != len(parts) {
		err = errors.New("a cursor of another list")
	}
	for i := 0; err == nil && i < len(parts); i++ {
		err = json.Unmarshal(raw[i], parts[i])
	}
	if err != nil {
		return fmt.Errorf("%w cursor: use the next_cursor of the previous page unchanged", ErrInvalid)
	}
	return nil
}

// PageSize returns the number of items for a requested limit; 0 means the default. Errors:
// ErrInvalid.
func PageSize(limit int) (int, error) {
	switch {
	case limit == 0:
		return DefaultLimit, nil
	case limit < 0 || limit > MaxLimit:
		return 0, fmt.Errorf("%w limit %d: 1 to %d", ErrInvalid, limit, MaxLimit)
	}
	return limit, nil
}

// ReadPage returns a page of a list whose position is one value, such as an id. start is the
// position before the first item, and position returns that of an item. read returns at most limit
// items after a position. verb begins the errors of read. Errors: ErrInvalid.
func ReadPage[T, K any](verb, cursor string, limit int, start K, position func(*T) K,
	read func(after K, limit int) ([]T, error)) (page Page[T], err error) {
	if limit, err = PageSize(limit); err != nil {
		return page, err
	}
	if err := ReadCursor(cursor, &start); err != nil {
		return page, err
	}
	if page.Items, err = read(start, limit); err != nil {
		return page, fmt.Errorf("%s: %w", verb, err)
	}
	if len(page.Items) == limit {
		page.Next = MakeCursor(position(&page.Items[limit-1]))
	}
	return page, nil
}

// rowsPerItem is how many rows a page reads first for each of its items.
const rowsPerItem = 4

// Windows yields how many rows a page of a list reads: first a few, which fill most pages, and then
// the others up to the maximum, for a filter that selects few rows.
func Windows(limit int) iter.Seq[int] {
	first := min(rowsPerItem*limit, maxScannedRows/2)
	return slices.Values([]int{first, maxScannedRows - first})
}

// Like converts a pattern with * to one for SQL's LIKE; nil if there is none.
func Like(pattern string) *string {
	if pattern == "" {
		return nil
	}
	p := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`).Replace(pattern)
	return &p
}

// NilIfZero returns nil for a zero value, which means a filter that is not set.
func NilIfZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
