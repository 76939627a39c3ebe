package ingest_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// padded returns a body of a size, with spaces at its end.
func padded(text string, size int) string { return text + strings.Repeat(" ", size-len(text)) }

// Bodies that fit when they start, each alone, are counted again when they are verified.
func TestServer_bodiesThatArriveTogether_areBounded(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 2
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 })
	handler, release, statuses := b.server.Handler(), make(chan struct{}), make(chan int, fit+1)
	var begun sync.WaitGroup
	for n := range fit + 1 {
		d := b.line(t, "stripe", padded(fmt.Sprintf(`{"id":"evt_%d"}`, n), size))
		begun.Add(1)
		req := httptest.NewRequest(http.MethodPost, "/webhooks/stripe",
			&bodyWithHook{Reader: bytes.NewReader(d.Body), hook: func() { begun.Done(); <-release }})
		req.Header, req.ContentLength = d.Header.Clone(), size
		go func() {
			res := httptest.NewRecorder()
			handler.ServeHTTP(res, req)
			statuses <- res.Code
		}()
	}
	begun.Wait()
	close(release)
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := int(b.counter(t, "postern_queue_deliveries", "source=stripe")) + len(statuses); n != fit+1 {
			return fmt.Errorf("%d of %d have a response", n, fit+1)
		}
		return nil
	})
	if len(statuses) != 1 {
		t.Errorf("%d rejected, want the one that does not fit", len(statuses))
	}
	b.run(t)
	codes := map[int]int{}
	for range fit + 1 {
		codes[<-statuses]++
	}
	if codes[http.StatusOK] != fit || codes[http.StatusServiceUnavailable] != 1 {
		t.Errorf("responses %v", codes)
	}
}

// The stored part of a rejected body must not keep the rest of it in memory.
func TestRejectionStore_truncatedBody_freesTheRest(t *testing.T) {
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.RejectionsMaxBody = 1024 })
	before := heap()
	b.forge(t, "stripe", 90, maxBody)
	if grown := int64(heap()) - int64(before); grown > 45<<20 {
		t.Errorf("90 rejected deliveries of 1 KiB each use %d MiB", grown>>20)
	}
	b.run(t)
	b.waitRows(t, 90, `rejections WHERE length(body) = 1024 AND bytes = $1`, maxBody)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // pools drop their content at the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Two clients send a part of a body and stop, so that all memory is used. A delivery evicts the
// first of them as soon as it has lasted a second, over HTTP/1.1 and over one connection of HTTP/2.
func TestUpload_evicted_gets503(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", version), func(t *testing.T) {
			t.Parallel()
			const largest = 64 << 10
			b := setup(t, func(o *ingest.Options) {
				o.Settings.QueueBytes = 64 << 10
				changeEndpoint(o, "", func(ep *ingest.Endpoint) { ep.MaxBody = largest })
			})
			web := httptest.NewUnstartedServer(b.server.Handler())
			web.EnableHTTP2 = version == 2
			web.Config.ReadTimeout = time.Minute
			web.StartTLS()
			t.Cleanup(web.Close)
			b.url, b.client = web.URL, web.Client()
			response := b.stall(t, largest, largest/2+1, largest)
			b.stall(t, largest, 8<<10+1, largest+16<<10)
			if a := b.post(t, "stripe", b.invoice(t, 1)); a.status != http.StatusServiceUnavailable {
				t.Errorf("a delivery concurrent with new uploads: status %d", a.status)
			}
			b.waitStatus(t, "stripe", b.invoice(t, 1), http.StatusOK)
			want := fmt.Sprintf("HTTP/%d 503 urn:postern:problem:too-slow", version)
			if got := <-response; got != want {
				t.Errorf("the stopped client got %s, want %s", got, want)
			}
		})
	}
}

// stall announces a body, sends a part of it, and waits until all uploads use that many bytes. The
// channel receives the response.
func (b *testBundle) stall(t *testing.T, announced int64, sent, held int) <-chan string {
	t.Helper()
	body, write := io.Pipe()
	t.Cleanup(func() { _ = write.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/webhooks/stripe", body)
	testkit.Must(t, err)
	req.ContentLength = announced
	response := make(chan string, 1)
	go func() {
		a, err := b.client.Do(req)
		if err != nil {
			response <- err.Error()
			return
		}
		defer func() { _ = a.Body.Close() }()
		text, _ := io.ReadAll(a.Body)
		_, problem, _ := strings.Cut(string(text), `"type":"`)
		problem, _, _ = strings.Cut(problem, `"`)
		response <- fmt.Sprintf("HTTP/%d %d %s", a.ProtoMajor, a.StatusCode, problem)
	}()
	if _, err := io.WriteString(write, strings.Repeat("x", sent)); err != nil {
		t.Fatal(err)
	}
	b.waitMetric(t, float64(held), "postern_body_memory_bytes")
	return response
}

// waitQueued waits until a source has n queued deliveries.
func (b *testBundle) waitQueued(t *testing.T, source string, n int) {
	t.Helper()
	b.waitMetric(t, float64(n), "postern_queue_deliveries", "source="+source)
}

// flood sends deliveries to the source "many" until n of them are queued; the group ends when all
// have a response.
func (b *testBundle) flood(t *testing.T, n int, onResponse func(status int)) *sync.WaitGroup {
	t.Helper()
	var group sync.WaitGroup
	handler := b.server.Handler() // without sockets, which are not tested here
	for i := range n {
		d := b.line(t, "many", fmt.Sprint("flood ", i))
		group.Go(func() { onResponse(serve(handler, "many", d)) })
	}
	return &group
}

// Deliveries of other sources go with the next batch, however many of one source are queued.
func TestQueue_floodOfOneSource_othersGoNext(t *testing.T) {
	t.Parallel()
	const waiting, batch = 1500, 64
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.Deadline = 1, batch, time.Minute
	})
	flood := b.flood(t, waiting, func(status int) {
		if status != http.StatusOK {
			t.Errorf("flood: status %d", status)
		}
	})
	b.waitQueued(t, "many", waiting)
	stripe := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	b.waitQueued(t, "stripe", 1)
	shop := b.send(t, t.Context(), "shop", b.sign(t, "shop", b.sample(t, "shop", "orders/create", 1)))
	b.waitQueued(t, "shop", 1)
	b.run(t)
	for _, one := range []<-chan response{stripe, shop} {
		(<-one).receipt(t)
	}
	flood.Wait()
	// ids have the order of appends, and of keys within a batch
	ranks := `SELECT max(n) FROM (SELECT source, row_number() OVER (ORDER BY id) AS n FROM events) e WHERE source <> $1`
	if place := b.count(t, ranks, b.endpoints["many"].Number); place > batch {
		t.Errorf("the last of the other sources was stored at position %d, want it among the first %d", place, batch)
	}
}

// Only a source that has used its quota of the queue is rejected.
func TestQueue_sourceQuotaFull_rejectsOnlyThatSource(t *testing.T) {
	t.Parallel()
	const queue = 100
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		o.Settings.Queue, o.Settings.Deadline = queue, time.Minute
	})
	var mu sync.Mutex
	statuses := map[int]int{}
	flood := b.flood(t, 2*queue, func(status int) {
		mu.Lock()
		defer mu.Unlock()
		statuses[status]++
	})
	b.waitQueued(t, "many", queue/2)
	testkit.Eventually(t, 30*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if statuses[http.StatusServiceUnavailable] != 2*queue-queue/2 {
			return fmt.Errorf("responses by status: %v", statuses)
		}
		return nil
	})
	b.postLine(t, "many", "one more").wantProblem(t, 503, "overloaded")
	stripe := b.send(t, t.Context(), "stripe", b.invoice(t, 1))
	b.waitQueued(t, "stripe", 1)
	b.run(t)
	(<-stripe).receipt(t)
	flood.Wait()
	if statuses[http.StatusOK] != queue/2 {
		t.Errorf("responses by status: %v", statuses)
	}
}

// Queued bodies count in their source's memory quota, even if their senders have disconnected.
// Bodies of other sources still fit.
func TestMemoryQuota_sourceQuotaFull_othersFit(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 })
	large := func(source string, n int) *provider.Delivery {
		return b.line(t, source, padded(fmt.Sprint("large ", n), size))
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for n := range fit {
		b.send(t, ctx, "many", large("many", n))
	}
	b.waitQueued(t, "many", fit)
	b.post(t, "many", large("many", fit)).wantProblem(t, 503, "overloaded")
	leave()
	b.post(t, "many", large("many", fit)).wantProblem(t, 503, "overloaded")
	var others []<-chan response
	for n := range 2 {
		others = append(others, b.send(t, t.Context(), "stripe", large("stripe", 1+n)))
		b.waitQueued(t, "stripe", 1+n)
	}
	b.run(t)
	for _, other := range others {
		(<-other).receipt(t)
	}
	b.waitStatus(t, "many", large("many", fit), http.StatusOK)
	b.waitRows(t, fit+3, `events`)
}

// gatedProvider verifies nothing before its gate is open, except bodies of one byte.
type gatedProvider struct {
	sim.Provider
	open, verifying chan struct{}
}

func (gatedProvider) Name() string { return "gated" }

func (g gatedProvider) Verify(_ *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	if len(d.Body) > 1 {
		g.verifying <- struct{}{}
		<-g.open
	}
	return provider.Verification{Scheme: "none"}, nil
}

func (gatedProvider) Identify(_ *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e := provider.Event{Type: "thing", Fingerprint: provider.BodyFingerprint(d.Body)}
	provider.SetContentKey(&e, d.Body)
	return []provider.Event{e}, nil
}

// As many large bodies are verified at once as there are CPUs. Others wait, at most as long as a
// request may. Small ones pass at once, and a large one passes after the provider panicked with
// another.
func TestSemaphore_largeBodies_areLimitedToCPUs(t *testing.T) {
	t.Parallel()
	g := gatedProvider{open: make(chan struct{}), verifying: make(chan struct{}, 100)}
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Deadline = 2 * time.Second
		ep := o.Endpoints["panic"]
		ep.Provider = g
		o.Endpoints["gated"] = ep
	})
	open := sync.OnceFunc(func() { close(g.open) })
	defer open() // the server stops only after its requests have ended
	post := func(source string, size int, fill byte) response {
		a, err := b.try(t.Context(), source, &provider.Delivery{Body: bytes.Repeat([]byte{fill}, size),
			Header: http.Header{}})
		if err != nil {
			t.Error(err)
		}
		return a
	}
	const large = 64 << 10
	for range 2 * runtime.GOMAXPROCS(0) {
		post("panic", large, 'x').wantProblem(t, http.StatusInternalServerError, "internal")
	}
	received := make(chan response, runtime.GOMAXPROCS(0))
	for i := range runtime.GOMAXPROCS(0) {
		go func() { received <- post("gated", large, byte('a'+i)) }()
	}
	for range runtime.GOMAXPROCS(0) {
		select {
		case <-g.verifying:
		case <-time.After(30 * time.Second):
			t.Fatal("the semaphore was not released")
		}
	}
	post("gated", 1, 'x').receipt(t)
	post("gated", large, 'z').wantProblem(t, http.StatusServiceUnavailable, "overloaded")
	if len(g.verifying) > 0 {
		t.Error("more bodies than CPUs are verified at once")
	}
	open()
	for range runtime.GOMAXPROCS(0) {
		(<-received).receipt(t)
	}
	post("gated", large, 'z').receipt(t)
}
