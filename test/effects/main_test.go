// Package effects_test proves effects as a whole: rules, lives of objects, deaths of processes and lies of other sides, all made of a seed, and what came of it compared with a model that knows nothing of the product's code.
package effects_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// A failing world is made again with its seed: go test ./test/effects -run TestWorlds -effects.seed=N -effects.count=1.
var (
	count = flag.Int("effects.count", 4, "how many worlds there are")
	seed  = flag.Uint64("effects.seed", 1, "the seed of the first world")
	// patience is how long a test waits for what must come.
	patience = flag.Duration("effects.patience", 2*time.Minute, "how long to wait for what must come")
	broken   = flag.String("effects.mutants", "", "instead, break the product in each way that has this text in its name, and fail unless each is noticed; all: in every way")
)

// atOnce is how many worlds there are at the same time: they wait most of theirs.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if *broken != "" {
		os.Exit(everyMutant(context.Background(), strings.TrimPrefix(*broken, "all")))
	}
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the flag is the testing package's
	}
	testkit.Main(m)
}
