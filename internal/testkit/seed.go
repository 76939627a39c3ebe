package testkit

import (
	"flag"
	"testing"
	"time"
)

var simSeed = flag.Uint64("sim.seed", 0, "the seed of random histories; 0: a new one for each test, or always the same with -short")

// fixedSeed is that of short runs. With it, a redaction once made a rebuilt object differ from the live one.
const fixedSeed = 1795654826864150853

// Seed returns the seed of a test's random choices. A short run has always the same one, so that it fails only for what has
// changed; a long run looks for what nobody has met yet. A failed test names its seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := *simSeed
	switch {
	case seed != 0:
	case testing.Short():
		seed = fixedSeed
	default:
		seed = uint64(time.Now().UnixNano())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("made with -sim.seed=%d", seed)
		}
	})
	return seed
}
