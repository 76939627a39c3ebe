package github

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// second is the resolution of GitHub's clock in microseconds.
const second = 1_000_000

func newDead(format string, args ...any) error {
	return &provider.Dead{Reason: fmt.Sprintf(format, args...)}
}

func text(v *canonical.Value, path ...string) string {
	s, _ := v.Get(path...).Text()
	return s
}

// at returns the value at a dotted path.
func at(root *canonical.Value, path string) *canonical.Value {
	return root.Get(strings.Split(path, ".")...)
}

func has(root *canonical.Value, member string) bool {
	return root.Get(member).Kind() != canonical.Missing
}

// number returns an id as text: a positive integer, or "".
func number(v *canonical.Value) string {
	n, ok := v.Int64()
	if !ok || n <= 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// readTime parses a time in whole seconds between the years 1970 and 9999. GitHub writes the same
// time in three formats, even for one object: Unix seconds, RFC 3339 in UTC, and RFC 3339 with
// milliseconds and an offset. Fractions are cut, so that the formats agree.
func readTime(v *canonical.Value) (micros int64, ok bool) {
	seconds, ok := v.Int64()
	if s, isText := v.Text(); isText {
		at, err := time.Parse(time.RFC3339Nano, s)
		seconds, ok = at.Unix(), err == nil
	}
	const end = 253402300800 // the year 10000
	if !ok || seconds <= 0 || seconds >= end {
		return 0, false
	}
	return seconds * second, true
}

func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
