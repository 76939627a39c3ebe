package processor_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// still says whatever the body is, at one version whose window reaches to the receipt.
type still struct{ sim.Provider }

func (still) Observe(_ *provider.Source, e *provider.Stored) (provider.Observation, error) {
	state, err := canonical.Parse(e.Body)
	return provider.Observation{ObjectType: "thing", ObjectID: "one", State: state, At: 1_700_000_000_000_000, HasAt: true, Unit: 1, Own: true, Still: true, Rank: 1}, err
}

// An event that only widens the window of a content, inside of what the windows of all contents cover, is stored: in memory the set grows in place, so
// the row of before must be a copy to be told from it.
func TestWindowInsideTheHullIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, still{}, nil)
	for i, e := range []struct {
		body     string
		received time.Duration
	}{{`{"a":1}`, 10 * time.Second}, {`{"a":2}`, time.Minute}, {`{"a":1}`, 30 * time.Second}} {
		at := time.UnixMicro(1_700_000_000_000_000).Add(e.received)
		ev := stream.Event{Source: "sim", Stored: provider.Stored{ID: int64(10 - i), Key: e.body, Type: "thing", ReceivedAt: at, Body: []byte(e.body)}}
		if err := p.Apply(t.Context(), 0, []stream.Event{ev}); err != nil {
			t.Fatal(err)
		}
	}
	widest := map[string]time.Duration{}
	o := b.object(t, "one")
	for _, m := range o.Set {
		widest[string(m.State.JSON)] = time.Duration(m.Hi-m.Lo) * time.Microsecond
	}
	if len(o.Set) != 2 || widest[`{"a": 1}`]+widest[`{"a":1}`] != 30*time.Second || o.Hi-o.Lo != time.Minute.Microseconds() {
		t.Errorf("windows %v of %+v", widest, o)
	}
}
