package testkit

import (
	"flag"
	"testing"
	"time"
)

var simSeed = flag.Uint64("sim.seed", 0, "the seed of random histories; 0: a new one for each test, or always the "+
	"same with -short")

// fixedSeed is the seed of short runs. With it, a redaction once made a rebuilt object differ from
// the live one.
const fixedSeed = 1795654826864150853

// Seed returns the seed of a test's random choices. Short runs always use the same seed, so that
// they fail only because of changed code. Long runs use a new seed. A failed test prints its seed.
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
			t.Logf("run again with -sim.seed=%d", seed)
		}
	})
	return seed
}
