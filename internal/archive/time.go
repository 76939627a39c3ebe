package archive

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// timeLayouts are the time formats of other systems; without a zone a time is UTC. A zone is an
// offset or an unambiguous word. EST, for example, is another offset in Sydney than in New York,
// and time.Parse treats any such word as UTC.
var timeLayouts = func() []string {
	out := []string{time.DateOnly}
	for _, clock := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		for _, zone := range []string{"", "Z07:00", "-0700", "-07", " Z07:00", " -0700", " UTC", " GMT", " +0000 UTC"} {
			out = append(out, clock+zone)
		}
	}
	return out
}()

// A number is a time of the years 2000 to 2100. Seconds, milliseconds and microseconds then differ
// by their size. Dates written as numbers (20260301, 20260301120000) are not in any of these
// ranges.
const (
	minUnixSecond = 946_684_800
	maxUnixSecond = 4_102_444_800
)

// readTime reads a time of a file: text in one of the usual formats, or a number of units since
// 1970. An empty text is zero. The result is in the years 1970 to 9999, which the log and an export
// can store.
func readTime(text string) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range timeLayouts {
		at, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if at = at.UTC(); at.Year() < 1970 || at.Year() > 9999 {
			return time.Time{}, fmt.Errorf("%.40q is not a time of the years 1970 to 9999", text)
		}
		return at, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is not a time: write 2026-03-01T12:00:00Z, or with an offset for Z "+
			"(+01:00), or seconds, milliseconds or microseconds since 1970", text)
	}
	for unit := int64(1); unit <= 1e6; unit *= 1000 {
		if n >= minUnixSecond*unit && n < maxUnixSecond*unit {
			return time.UnixMicro(n * (1e6 / unit)).UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is not a time of the years 2000 to 2100, in seconds, milliseconds or "+
		"microseconds since 1970", text)
}
