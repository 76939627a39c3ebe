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
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
)

// BenchmarkBesideAFlood measures how long a source's deliveries, 50 a second, take alone, beside a source that sends ten times as
// many, and beside one that sends from so many clients as fast as it is answered.
func BenchmarkBesideAFlood(b *testing.B) {
	for _, c := range []struct {
		name             string
		perSecond, crowd int
	}{{"alone", 0, 0}, {"beside=500/s", 500, 0}, {"beside=50clients", 0, 50}, {"beside=200clients", 0, 200}} {
		b.Run(c.name, func(b *testing.B) { besideAFlood(b, c.perSecond, c.crowd) })
	}
}

func besideAFlood(b *testing.B, perSecond, crowd int) {
	bundle := setup(b, func(o *ingest.Options) { o.Publish = func(...stream.Event) {} })
	ctx, stop := context.WithCancel(b.Context())
	var group sync.WaitGroup
	var sent, stored atomic.Int64
	send := func() {
		d := bundle.sign(b, "many", provider.Sample{Body: fmt.Appendf(nil, "flood %d", sent.Add(1))})
		if a, err := bundle.try(ctx, "many", d); err == nil && a.status == 200 {
			stored.Add(1)
		}
	}
	for range crowd {
		group.Go(func() {
			for ctx.Err() == nil {
				send()
			}
		})
	}
	if perSecond > 0 {
		group.Go(func() { every(ctx, time.Second/time.Duration(perSecond), func(int) { group.Go(send) }) })
	}
	var took []time.Duration
	var mu sync.Mutex
	measured, done := context.WithCancel(ctx)
	var mine sync.WaitGroup
	every(measured, 20*time.Millisecond, func(n int) {
		if n == b.N {
			done()
			return
		}
		d := bundle.invoice(b, n+1)
		mine.Go(func() {
			a, err := bundle.try(b.Context(), "stripe", d)
			if err != nil || a.status != 200 {
				b.Errorf("status %d, %v", a.status, err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, a.took)
		})
	})
	mine.Wait()
	elapsed := b.Elapsed().Seconds()
	stop()
	group.Wait()
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(float64(stored.Load())/elapsed, "flood/s")
}

// every calls do with 0, 1, 2, ... at a steady pace until ctx ends, and does not wait for what it starts.
func every(ctx context.Context, pause time.Duration, do func(n int)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do(n)
		}
	}
}
