package declared

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unit is the format of a time or a version; the zero value is Auto.
type Unit string

// The units.
const (
	// Auto reads RFC 3339, and numbers of seconds or milliseconds by their size.
	Auto         Unit = "auto"
	Seconds      Unit = "s"
	Milliseconds Unit = "ms"
	RFC3339      Unit = "rfc3339"
	// Integer is not a time but a number that grows with each change.
	Integer Unit = "integer"
)

func (u Unit) isAuto() bool { return u == Auto || u == "" }

const (
	// maxAt is the end of the year 9999 in microseconds.
	maxAt = 253_402_300_800_000_000
	// minMilliseconds is the year 5138 in seconds, and 1973 in milliseconds.
	minMilliseconds = 100_000_000_000
)

// Read parses a time in microseconds (an integer unchanged), and returns the resolution of its
// clock in microseconds. If a fraction is possible but zero, the clock may have whole seconds. Read
// assumes that, because a wider time range is safe.
func (u Unit) Read(text string) (at, resolution int64, ok bool) {
	switch {
	case u == Integer:
		n, err := strconv.ParseInt(text, 10, 64)
		return n, 1, err == nil && n >= 0
	case u == RFC3339, u.isAuto() && strings.ContainsAny(text, "-:T"):
		return readDate(text)
	}
	return u.readNumber(text)
}

// layouts are RFC 3339 and formats that senders use instead. A time without a zone is UTC.
var layouts = [...]string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999 MST", "2006-01-02 15:04:05.999999999 -0700"}

func readDate(text string) (at, resolution int64, ok bool) {
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		// the name of a zone alone does not give its offset
		if zone, offset := t.Zone(); offset == 0 && zone != "UTC" && zone != "" && zone != "GMT" {
			return 0, 0, false
		}
		at := t.UnixMicro()
		return at, resolutionOf(int64(t.Nanosecond())), t.Year() < 10_000 && at > 0
	}
	return 0, 0, false
}

func (u Unit) readNumber(text string) (at, resolution int64, ok bool) {
	if strings.Trim(text, "0123456789.eE+") != "" { // ParseFloat also accepts hexadecimal numbers, infinities and more
		return 0, 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n <= 0 || n > maxAt {
		return 0, 0, false
	}
	scale := int64(1e6)
	if u == Milliseconds || u.isAuto() && n >= minMilliseconds {
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

// resolutionOf returns the resolution of a clock that showed this fraction of a second.
func resolutionOf(fraction int64) int64 {
	if fraction != 0 {
		return int64(time.Millisecond / time.Microsecond)
	}
	return int64(time.Second / time.Microsecond)
}
