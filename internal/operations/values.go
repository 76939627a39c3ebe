package operations

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Page selects a page of a list.
type Page struct {
	Limit  *int   `json:"limit,omitzero" validate:"omitnil,page_size"`
	Cursor string `json:"cursor,omitzero"`
}

// SetPage selects the page after a cursor, with at most limit items.
func (p *Page) SetPage(limit int, cursor string) { p.Limit, p.Cursor = &limit, cursor }

// limit returns 0, the default, where none is given.
func (p *Page) limit() int {
	if p.Limit == nil {
		return 0
	}
	return *p.Limit
}

// Time is a time that may be given relative to now. It keeps the text that it was read from, so
// that two requests with the same text are equal.
type Time struct {
	at   time.Time
	text string
}

// At returns an absolute time.
func At(at time.Time) Time { return Time{at: at} }

// Time returns the absolute time; zero where none is given.
func (t Time) Time() time.Time { return t.at }

// IsZero reports whether no time is given.
func (t Time) IsZero() bool { return t.at.IsZero() }

const timeHelp = "an RFC 3339 time, a date, or how long ago (15m, 2h, 7d)"

// UnmarshalText reads a time, or how long ago it was. An empty text is the zero time.
func (t *Time) UnmarshalText(b []byte) error {
	text := string(b)
	if text == "" {
		*t = Time{}
		return nil
	}
	at, ok := absoluteTime(text)
	if !ok {
		ago, err := duration(text)
		if err != nil {
			return fmt.Errorf(": write %s", timeHelp)
		}
		at = time.Now().Add(-ago)
	}
	*t = Time{at, text}
	return nil
}

// MarshalText returns the text that the time was read from, or the time in RFC 3339.
func (t Time) MarshalText() ([]byte, error) {
	if t.text == "" && !t.IsZero() {
		return t.at.AppendFormat(nil, time.RFC3339Nano), nil
	}
	return []byte(t.text), nil
}

// futureTime reads a time in the future, absolute or from now.
func futureTime(name, text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if at, ok := absoluteTime(text); ok {
		return at, nil
	}
	in, err := duration(text)
	if err != nil || in <= 0 {
		return time.Time{}, invalid("%s %q: write an RFC 3339 time, a date, or how long from now (12h, 90d)", name,
			text)
	}
	return time.Now().Add(in), nil
}

func absoluteTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// duration parses a Go duration, or a number of days (7d).
func duration(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	return time.Duration(n) * 24 * time.Hour, err
}

// IDs are ids of Postern, in order and each once. A list that is not nil but empty
// selects nothing.
type IDs []int64

// UnmarshalText reads ids that are separated by commas.
func (ids *IDs) UnmarshalText(b []byte) error {
	all := IDs{}
	for _, text := range strings.FieldsFunc(string(b), func(r rune) bool { return r == ',' || r == ' ' }) {
		id, ok := events.ParseID(text)
		if !ok {
			return fmt.Errorf(": %q is not an id of Postern", text)
		}
		all = append(all, id)
	}
	slices.Sort(all)
	*ids = slices.Compact(all)
	return nil
}

// MarshalText returns the ids, separated by commas.
func (ids IDs) MarshalText() ([]byte, error) {
	var b []byte
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return b, nil
}

// RunNumber is the number of a run, which may be given as events.LiveRunName.
type RunNumber int64

// UnmarshalText reads a number, or events.LiveRunName. An empty text is the live run too.
func (n *RunNumber) UnmarshalText(b []byte) error {
	if len(b) == 0 || string(b) == events.LiveRunName {
		*n = RunNumber(events.LiveRun)
		return nil
	}
	number, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || number < 0 {
		return errNoNumber
	}
	*n = RunNumber(number)
	return nil
}
