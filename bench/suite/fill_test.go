package suite

import (
	"regexp"
	"testing"

	"github.com/postern-gateway/postern/bench/load"
)

var objectOf = regexp.MustCompile(`"object":\{"id":"(cus_[0-9]+)"`)

// The part that the reference applies is the whole in small, in each row of applying: its objects
// are updated as often, or those few that get everything get it there too.
func TestReferenceMeetsTheSameLoad(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		events, objects int
		want            int // objects in the part
		updates         int // of each, 0: any number
	}{
		{"ten times each", 200_000, 20_000, 2000, 10},
		{"ten times each, quick", 40_000, 4000, 1000, 10},
		{"one of its own", 100_000, 0, 10_000, 1},
		{"ten get everything", 100_000, 10, 10, 0},
	} {
		supply := filling(c.events, c.objects)
		supply.Run, supply.BodySize = "00001", 500
		d, part := load.Make(supply), Part(c.events)
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
