package declared

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unit is how a time or a version is written.
type Unit int

// The units. Auto reads RFC 3339, and numbers of seconds or milliseconds by their magnitude.
const (
	Auto Unit = iota
	Seconds
	Milliseconds
	RFC3339
	// Integer is no time but a number that grows with each change.
	Integer
)

const (
	// maxAt is the end of the year 9999 in microseconds.
	maxAt = 253_402_300_800_000_000
	// leastMilliseconds is the year 5138 in seconds, and 1973 in milliseconds.
	leastMilliseconds = 100_000_000_000
)

// Read reads a time in microseconds (an integer as it is), and how many of them its clock counts at once. Where a fraction could be
// and is zero, the clock may count whole seconds: the wider window is the safe one.
func (u Unit) Read(text string) (at, resolution int64, ok bool) {
	switch {
	case u == Integer:
		n, err := strconv.ParseInt(text, 10, 64)
		return n, 1, err == nil && n >= 0
	case u == RFC3339, u == Auto && strings.ContainsAny(text, "-:T"):
		return readDate(text)
	}
	return u.readNumber(text)
}

// layouts are RFC 3339 and what senders write in its place. A time without a zone is taken as UTC.
var layouts = [...]string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999 MST", "2006-01-02 15:04:05.999999999 -0700"}

func readDate(text string) (at, resolution int64, ok bool) {
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if zone, offset := t.Zone(); offset == 0 && zone != "UTC" && zone != "" && zone != "GMT" { // a name alone tells no offset
			return 0, 0, false
		}
		at := t.UnixMicro()
		return at, resolutionOf(int64(t.Nanosecond())), t.Year() < 10_000 && at > 0
	}
	return 0, 0, false
}

func (u Unit) readNumber(text string) (at, resolution int64, ok bool) {
	if strings.Trim(text, "0123456789.eE+") != "" { // ParseFloat knows hexadecimal, infinities and more
		return 0, 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 || n > maxAt {
		return 0, 0, false
	}
	scale := int64(1e6)
	if u == Milliseconds || u == Auto && n >= leastMilliseconds {
		scale = 1e3
	}
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		at, ok = whole*scale, whole < maxAt/scale
	} else {
		f := math.Round(n * float64(scale))
		at, ok = int64(f), f < maxAt
	}
	if scale == 1e3 {
		return at, int64(time.Millisecond / time.Microsecond), ok && at > 0
	}
	return at, resolutionOf(at % 1e6), ok && at > 0
}

// resolutionOf is that of a clock that showed a fraction of a second.
func resolutionOf(fraction int64) int64 {
	if fraction != 0 {
		return int64(time.Millisecond / time.Microsecond)
	}
	return int64(time.Second / time.Microsecond)
}
