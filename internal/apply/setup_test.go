package apply_test

import (
	"math/rand/v2"
	"testing"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

var must, equal = testkit.Must, testkit.Equal

type testBundle struct{ *applied.Log }

func setup(t *testing.T) *testBundle {
	t.Helper()
	return &testBundle{applied.New(t)}
}

// messages returns the events of a history in the form of the stream.
func messages(h *sim.History) (all []stream.Event) {
	for i, e := range h.Events {
		all = append(all, applied.Message(i, e))
	}
	return all
}

// shuffledMessages returns the events of a history in random order.
func shuffledMessages(h *sim.History, r *rand.Rand) []stream.Event {
	all := messages(h)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// inBatches applies events in batches. Each batch also contains one of the earlier events.
func inBatches(t *testing.T, p *apply.Applier, all []stream.Event, r *rand.Rand) {
	t.Helper()
	for rest := all; len(rest) > 0; {
		n := min(1+r.IntN(15), len(rest))
		applyBatch(t, p, append(rest[:n:n], all[r.IntN(len(all)-len(rest)+n)]))
		rest = rest[n:]
	}
}

func TestMain(m *testing.M) { testkit.Main(m) }
