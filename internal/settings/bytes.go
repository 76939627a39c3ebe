package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes, written as a plain number or with KiB, MiB or GiB.
type Bytes int64

// the largest unit first, so that String chooses the shortest exact form.
var units = [...]struct {
	name string
	size int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// UnmarshalText reads "512", "64KiB", "4 MiB" or "2GiB".
func (b *Bytes) UnmarshalText(text []byte) error {
	s, factor := strings.Trim(strings.TrimSpace(string(text)), `"'`), int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			s, factor = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return fmt.Errorf("%q is not a number of bytes: write e.g. 65536, 64KiB, 4MiB or 2GiB", text)
	}
	*b = Bytes(n * factor)
	return nil
}

// String writes the shortest exact form.
func (b Bytes) String() string {
	for _, u := range units {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText returns String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }
