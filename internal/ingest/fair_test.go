package ingest_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// waits waits until a source has n deliveries in the queue.
func (b *testBundle) waits(t *testing.T, source string, n int) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if got := b.gauge(t, "postern_queue_deliveries", source); got != float64(n) {
			return fmt.Errorf("%v deliveries of %s wait, want %d", got, source, n)
		}
		return nil
	})
}

// gauge is a metric's value for a source; "": of a metric without sources.
func (b *testBundle) gauge(t *testing.T, name, source string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); f.GetName() == name && (len(l) == 0 && source == "" || len(l) == 1 && l[0].GetValue() == source) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, source)
	return 0
}

// flood sends deliveries to the source "many" until so many of them wait; the group ends when all are answered.
func (b *testBundle) flood(t *testing.T, n int, answered func(status int)) *sync.WaitGroup {
	t.Helper()
	var group sync.WaitGroup
	handler := b.server.Handler() // without sockets, which are not what is tested
	for i := range n {
		d := b.sign(t, "many", provider.Sample{Body: fmt.Appendf(nil, "flood %d", i)})
		group.Go(func() { answered(serve(handler, "many", d)) })
	}
	return &group
}

// What others send goes with the next batch, however much of one source waits before it.
func TestFloodOfOneSourceDoesNotStandBeforeOthers(t *testing.T) {
	t.Parallel()
	const waiting, batch = 1500, 64
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.Deadline = 1, batch, time.Minute
	})
	flood := b.flood(t, waiting, func(status int) {
		if status != http.StatusOK {
			t.Errorf("of the flood: status %d", status)
		}
	})
	b.waits(t, "many", waiting)
	stripe := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	b.waits(t, "stripe", 1)
	shop := b.send(t, t.Context(), "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", 1)))
	b.waits(t, "shop", 1)
	b.run(t)
	for _, one := range []<-chan answer{stripe, shop} {
		(<-one).receipt(t)
	}
	flood.Wait()
	// Ids are given in the order of appends, and within one batch by key.
	ranks := `SELECT max(n) FROM (SELECT source, row_number() OVER (ORDER BY id) AS n FROM events) e WHERE source <> $1`
	if place := b.count(t, ranks, b.endpoints["many"].Number); place > batch {
		t.Errorf("the last of the other sources was stored in place %d, want it among the first %d", place, batch)
	}
}

// A source that has its share of the queue is refused, and nobody else is.
func TestFullShareRefusesOnlyItsSource(t *testing.T) {
	t.Parallel()
	const queue = 100
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.Queue, o.Settings.Deadline = queue, time.Minute })
	var mu sync.Mutex
	statuses := map[int]int{}
	flood := b.flood(t, 2*queue, func(status int) {
		mu.Lock()
		defer mu.Unlock()
		statuses[status]++
	})
	b.waits(t, "many", queue/2)
	testkit.Eventually(t, 30*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if statuses[http.StatusServiceUnavailable] != 2*queue-queue/2 {
			return fmt.Errorf("answers by status: %v", statuses)
		}
		return nil
	})
	b.post(t, "many", b.sign(t, "many", provider.Sample{Body: []byte("one more")})).refused(t, 503, "overloaded")
	stripe := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	b.waits(t, "stripe", 1)
	b.run(t)
	(<-stripe).receipt(t)
	flood.Wait()
	if statuses[http.StatusOK] != queue/2 {
		t.Errorf("answers by status: %v", statuses)
	}
}

// Bodies that wait are counted against their source's share of the memory; the others' still fit.
func TestMemoryIsSharedToo(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 })
	handler := b.server.Handler()
	large := func(source string, n int) *provider.Delivery {
		text := fmt.Sprintf("large %d", n)
		return b.sign(t, source, provider.Sample{Body: []byte(text + strings.Repeat(" ", size-len(text)))})
	}
	var group sync.WaitGroup
	for n := range fit {
		group.Go(func() {
			if status := serve(handler, "many", large("many", n)); status != http.StatusOK {
				t.Errorf("delivery %d: status %d", n, status)
			}
		})
	}
	b.waits(t, "many", fit)
	b.post(t, "many", large("many", fit)).refused(t, 503, "overloaded")
	stripe := b.send(t, t.Context(), "stripe", large("stripe", 1))
	b.waits(t, "stripe", 1)
	second := b.send(t, t.Context(), "stripe", large("stripe", 2))
	b.waits(t, "stripe", 2)
	b.run(t)
	(<-stripe).receipt(t)
	(<-second).receipt(t)
	group.Wait()
}
