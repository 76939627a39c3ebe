package events

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The bounds of a page of any list.
const (
	// DefaultLimit is how many items a page has where nobody says.
	DefaultLimit = 50
	// MaxLimit is the most items of a page.
	MaxLimit = 1000
	// scanRows is how many rows one page looks at. A page may be short, with a cursor to go on, so that no filter that
	// matches little makes one call walk the whole log.
	scanRows = 10_000
)

// ErrInvalid: a filter, limit or cursor that cannot be used; the text says why.
var ErrInvalid = errors.New("invalid")

// Page is a part of a list.
type Page[T any] struct {
	Items []T
	// Next is the cursor of the following page, "" where this is the last. A page may be short or empty and still have one.
	Next string
	// SearchedTo is how far back a search of contents has looked that did not look at all; else zero.
	SearchedTo Instant
}

// MarshalJSON writes {"items": [...], "next_cursor": "..." or null}, and "searched_back_to" where a search is not at its end.
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

// Instant is a time that is written as RFC 3339 in UTC with microseconds, and as null where it is zero.
type Instant struct{ time.Time }

// Optionally is zero for nil.
func Optionally(at *time.Time) (i Instant) {
	if at != nil {
		i.Time = *at
	}
	return i
}

// String is the JSON form without quotes; "" for zero.
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

// MakeCursor packs where a page ended; opaque to whoever passes it back.
func MakeCursor(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		return "" // parts are numbers and strings, which always marshal
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// ReadCursor unpacks a cursor into pointers; an empty one leaves them alone. Errors: ErrInvalid.
func ReadCursor(cursor string, parts ...any) error {
	if cursor == "" {
		return nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) > 4096 {
		return fmt.Errorf("%w cursor: use the next_cursor of the page before, as it was given", ErrInvalid)
	}
	var raw []json.RawMessage
	err = json.Unmarshal(b, &raw)
	if err == nil && len(raw) != len(parts) {
		err = errors.New("of another list")
	}
	for i := 0; err == nil && i < len(parts); i++ {
		err = json.Unmarshal(raw[i], parts[i])
	}
	if err != nil {
		return fmt.Errorf("%w cursor: use the next_cursor of the page before, as it was given", ErrInvalid)
	}
	return nil
}

// PageSize is the number of items for a wanted limit, 0 being the default. Errors: ErrInvalid.
func PageSize(limit int) (int, error) {
	switch {
	case limit == 0:
		return DefaultLimit, nil
	case limit < 0 || limit > MaxLimit:
		return 0, fmt.Errorf("%w limit %d: 1 to %d", ErrInvalid, limit, MaxLimit)
	}
	return limit, nil
}

// like turns a pattern with * into that of SQL's LIKE; nil where there is none.
func like(pattern string) *string {
	if pattern == "" {
		return nil
	}
	p := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`).Replace(pattern)
	return &p
}

// Optional is nil for a zero value: a filter that is not set.
func Optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
