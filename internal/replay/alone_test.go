package replay_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// ending ends whoever reads some events, so many times.
type ending struct {
	sim.Provider
	times map[int64]int
}

func (e ending) Observe(s *provider.Source, ev *provider.Stored) (provider.Observation, error) {
	if e.times[ev.ID] > 0 {
		e.times[ev.ID]--
		runtime.Goexit()
	}
	return e.Provider.Observe(s, ev)
}

// What ends its process again and again is passed over as failed in the end; what was only in hand when somebody else ended the process is not, and neither is
// anything beside it. So for a replay, and for a retry of what is dead.
func TestWhatEndsTheProcessIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, again := range []int64{0, 12} {
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 43, 4)
			if _, err := b.db.Pool.Exec(t.Context(), `UPDATE outcomes SET status = 'dead', attempts = 9, reason = 'x' WHERE run = 0`); err != nil {
				t.Fatal(err)
			}
			guilty, unlucky := b.ids[7], b.ids[3]
			to := processor.Target{Run: 5}
			if again != 0 {
				to = processor.Target{Run: events.LiveRun, Again: again}
			}
			p := b.processor(t, ending{times: map[int64]int{guilty: 100, unlucky: 2}})
			p.Settings = processor.DefaultSettings
			ended := false
			for tries := 0; !ended; tries++ {
				if tries > 2+3 {
					t.Fatal("the run never ends")
				}
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := p.ApplyStored(t.Context(), to, b.ids, true); err != nil {
						t.Error(err)
					}
					ended = true
				})
				wg.Wait()
			}
			left := b.rows(t, `SELECT event_id || ' ' || status || ' ' || attempts || ' ' || reason FROM outcomes WHERE run = $1 AND status IN ('failed', 'dead')`, to.Run)
			if len(left) != 1 || !strings.HasPrefix(left[0], fmt.Sprintf("%d failed 3 tried alone; the attempt has not ended yet", guilty)) {
				t.Errorf("left: %q", left)
			}
			if n := len(b.rows(t, `SELECT status FROM outcomes WHERE run = $1`, to.Run)); n != len(b.ids) {
				t.Errorf("%d outcomes of %d events", n, len(b.ids))
			}
		})
	}
}
