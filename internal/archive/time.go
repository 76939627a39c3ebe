package archive

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// timeLayouts are how other systems write times; without a zone they are UTC. A zone is an offset, or a word that stands for one only: EST is another
// offset in Sydney than in New York, and time.Parse takes any such word for UTC.
var timeLayouts = func() []string {
	out := []string{time.DateOnly}
	for _, clock := range []string{"2006-01-02T15:04:05", "2006-01-02 15:04:05"} {
		for _, zone := range []string{"", "Z07:00", "-0700", "-07", " Z07:00", " -0700", " UTC", " GMT", " +0000 UTC"} {
			out = append(out, clock+zone)
		}
	}
	return out
}()

// A number is a time of the years 2000 to 2100. So seconds, milliseconds and microseconds are told apart by their size, and the usual ways to write a date
// as a number (20260301, 20260301120000) are none of them.
const (
	firstSecond = 946_684_800
	pastSecond  = 4_102_444_800
)

// readTime reads a time as files have it: text in one of the usual ways, or a number of units since 1970. Empty: zero. What it returns lies in the years
// 1970 to 9999, which the log and an export can have.
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
			return time.Time{}, fmt.Errorf("%.40q is no time of the years 1970 to 9999", text)
		}
		return at, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is no time: write 2026-03-01T12:00:00Z, or with an offset for Z (+01:00), or seconds, milliseconds or microseconds since 1970", text)
	}
	for unit := int64(1); unit <= 1e6; unit *= 1000 {
		if n >= firstSecond*unit && n < pastSecond*unit {
			return time.UnixMicro(n * (1e6 / unit)).UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%.40q is no time of the years 2000 to 2100, in seconds, milliseconds or microseconds since 1970", text)
}
