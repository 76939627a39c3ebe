package signature

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Unit is how a time is written; the zero value is Seconds.
type Unit string

// The units.
const (
	Seconds      Unit = "s"
	Milliseconds Unit = "ms"
	RFC3339      Unit = "rfc3339"
	// Magnitude is seconds, or milliseconds if the number is too large for seconds; for senders
	// with contradictory documentation.
	Magnitude Unit = "auto"
)

// minMilliseconds is the year 5138 in seconds, and 1973 in milliseconds.
const minMilliseconds = 100_000_000_000

// parse accepts plain decimal numbers only. The text was signed and must have one meaning.
func (u Unit) parse(text string) (time.Time, error) {
	if u == RFC3339 {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return time.Time{}, fmt.Errorf("not a time like 2026-01-02T15:04:05Z: %s", quoteTime(text))
		}
		return at.UTC(), nil
	}
	n, err := strconv.ParseUint(text, 10, 50)
	if err != nil || len(text) > 1 && text[0] == '0' {
		return time.Time{}, fmt.Errorf("not a time in Unix %s: %s", u.describe(), quoteTime(text))
	}
	if u == Milliseconds || u == Magnitude && n >= minMilliseconds {
		return time.UnixMilli(int64(n)).UTC(), nil
	}
	if n >= 1<<40 {
		return time.Time{}, fmt.Errorf("not a time in Unix seconds: %s", quoteTime(text))
	}
	return time.Unix(int64(n), 0).UTC(), nil
}

// quoteTime quotes a text that may be a time. Any other text may be a signature in the wrong place
// and is not shown.
func quoteTime(text string) string {
	if len(text) > 40 || strings.Trim(text, "0123456789+-:.TZ ") != "" {
		return fmt.Sprintf("%d other characters", len(text))
	}
	return strconv.Quote(text)
}

func (u Unit) format(at time.Time) string {
	switch u {
	case Milliseconds:
		return strconv.FormatInt(at.UnixMilli(), 10)
	case RFC3339:
		return at.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return strconv.FormatInt(at.Unix(), 10)
}

// describe returns the name of the unit.
func (u Unit) describe() string {
	switch u {
	case Milliseconds:
		return "milliseconds"
	case RFC3339:
		return "RFC 3339"
	case Magnitude:
		return "seconds or milliseconds"
	}
	return "seconds"
}
