package ingest_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A flood of an own service's batches over a slow line is no outage: a neighbour's deliveries go to the log, soon, and the flood's own are taken.
func TestDirectFloodOfBatchesStopsNobody(t *testing.T) {
	t.Parallel()
	const flood, sends = 200, 9
	// Long enough for a machine that is busy with other tests, on which a session takes a while to be opened.
	b := setupSpool(t, func(o *ingest.Options) {
		o.Settings.StallAfter, o.Settings.AcquireWithin = 10*time.Second, 10*time.Second
	})
	b.store.Delay(10 * time.Millisecond)
	n := 0
	quick := func() time.Duration {
		var took []time.Duration
		for range sends {
			n++
			a := b.post(t, "many", b.sign(t, "many", line(fmt.Sprint("quiet ", n))))
			if r := a.receipt(t); r.ID == "" {
				t.Errorf("not in the log: %s", a.body)
			}
			took = append(took, a.took)
		}
		slices.Sort(took)
		return took[sends/2]
	}
	alone := quick()
	ctx, stop := context.WithCancel(t.Context())
	var sent, taken, refused atomic.Int64
	var crowd sync.WaitGroup
	for range flood {
		crowd.Go(func() {
			for ctx.Err() == nil {
				i := sent.Add(1)
				switch a, err := b.try(ctx, "api", pushed("["+event(fmt.Sprint(i, "a"), "1")+","+event(fmt.Sprint(i, "b"), "1")+"]", ofMany)); {
				case err != nil: // the test is over
				case a.status == 200:
					taken.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	for sent.Load() < 2*flood { // all are there
		quick()
	}
	if beside := quick(); beside > 50*alone { // a transaction for each batch takes a hundred and more
		t.Errorf("%s beside the flood, %s alone", beside, alone)
	}
	stop()
	crowd.Wait()
	if refused.Load() > 0 || taken.Load() < flood {
		t.Errorf("%d batches taken, %d refused", taken.Load(), refused.Load())
	}
	if s := b.spool.Stats(); s.Records > 0 || b.counter(t, "postern_deliveries_total", "result=spooled") > 0 {
		t.Errorf("the spool holds %+v", s)
	}
}

// A key whose append hangs is answered as any other is then, however often it comes, not that its receipt is near.
func TestDirectKeyThatHangs(t *testing.T) {
	t.Parallel()
	for name, final := range map[string]bool{"final": true, "spooled": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupSpool(t, func(o *ingest.Options) {
				ep := o.Endpoints["api"]
				ep.FinalReceipts = final
				o.Endpoints["api"] = ep
				o.Settings.Deadline = 2 * time.Second
			})
			b.post(t, "api", pushed(event("0", "0"), ofOne)).receipt(t)
			t.Cleanup(b.store.Restore)
			b.store.Stall()
			d := pushed(event("1", "1"), ofOne)
			for range 3 {
				if a := b.post(t, "api", d); final {
					a.refused(t, 503, "unavailable")
				} else {
					a.kept(t, "/s 1")
				}
			}
			b.store.Restore()
			b.taken(t, d)
			testkit.Eventually(t, time.Minute, func() error {
				if n := b.spool.Stats().Records; n > 0 {
					return fmt.Errorf("%d still kept", n)
				}
				return nil
			})
			b.keeps(t, 2)
		})
	}
}
