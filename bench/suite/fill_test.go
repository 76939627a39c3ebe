package suite

import (
	"regexp"
	"testing"

	"github.com/postern-gateway/postern/bench/load"
)

var objectOf = regexp.MustCompile(`"object":\{"id":"(cus_[0-9]+)"`)

// The part that the reference applies has the load of the whole, in each row of applying.
func TestFilling_firstPart_hasLoadOfWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		events, objects int
		want            int // objects in the part
		updates         int // of each object, 0: any number
	}{
		{"ten times each", 200_000, 20_000, 2000, 10},
		{"ten times each, quick", 40_000, 4000, 1000, 10},
		{"one event each", 100_000, 0, 10_000, 1},
		{"all about ten objects", 100_000, 10, 10, 0},
	} {
		supply := filling(c.events, c.objects)
		supply.Run, supply.BodySize = "00001", 500
		d, part := load.Make(supply), part(c.events)
		seen := map[string]int{}
		for i := range part {
			seen[string(objectOf.FindSubmatch(d.Request(i))[1])]++
		}
		if len(seen) != c.want {
			t.Errorf("%s: %d of %d events are about %d objects, want %d", c.name, part, c.events, len(seen), c.want)
		}
		for id, n := range seen {
			if c.updates > 0 && n != c.updates {
				t.Errorf("%s: %d updates of %s, want %d", c.name, n, id, c.updates)
				break
			}
		}
	}
}
