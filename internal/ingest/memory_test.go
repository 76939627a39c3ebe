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

// started is a body that tells of its first read, and has nothing to read before it is released.
type started struct {
	io.Reader
	began func()
	going <-chan struct{}
}

func (s *started) Read(b []byte) (int, error) {
	s.began()
	<-s.going
	return s.Reader.Read(b)
}

// Bodies that fit when they begin, each alone, are counted again when they are verified.
func TestServer_bodiesThatArriveTogether_areBounded(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 2
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 })
	handler, going, answers := b.server.Handler(), make(chan struct{}), make(chan int, fit+1)
	var begun sync.WaitGroup
	for n := range fit + 1 {
		text := fmt.Sprintf(`{"id":"evt_%d"}`, n)
		d := b.sign(t, "stripe", provider.Sample{Body: []byte(text + strings.Repeat(" ", size-len(text)))})
		begun.Add(1)
		req := httptest.NewRequest(http.MethodPost, "/webhooks/stripe", &started{bytes.NewReader(d.Body), sync.OnceFunc(begun.Done), going})
		req.Header, req.ContentLength = d.Header.Clone(), size
		go func() {
			res := httptest.NewRecorder()
			handler.ServeHTTP(res, req)
			answers <- res.Code
		}()
	}
	begun.Wait()
	close(going)
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := int(b.gauge(t, "postern_queue_deliveries", "stripe")) + len(answers); n != fit+1 {
			return fmt.Errorf("%d of %d are decided", n, fit+1)
		}
		return nil
	})
	if len(answers) != 1 {
		t.Errorf("%d refused, want the one that does not fit", len(answers))
	}
	b.run(t)
	codes := map[int]int{}
	for range fit + 1 {
		codes[<-answers]++
	}
	if codes[http.StatusOK] != fit || codes[http.StatusServiceUnavailable] != 1 {
		t.Errorf("answers %v", codes)
	}
}

// What is kept of a refused body must not hold the rest of it in memory.
func TestCutRejectionsHoldNoWholeBodies(t *testing.T) {
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.RejectionsMaxBody = 1024 })
	handler := b.server.Handler()
	before := heap()
	forged := &provider.Delivery{Header: http.Header{}, Body: make([]byte, maxBody)}
	for range 90 {
		if status := serve(handler, "stripe", forged); status != 401 {
			t.Fatalf("status %d", status)
		}
	}
	if grown := int64(heap()) - int64(before); grown > 45<<20 {
		t.Errorf("90 refused deliveries, 1 KiB kept of each, hold %d MiB", grown>>20)
	}
	b.run(t)
	b.waitRows(t, 90, `rejections WHERE length(body) = 1024 AND bytes = $1`, maxBody)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // pools let go of what they hold with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestUpload_evicted_isAnswered503 has two clients that send a part of a body and stop, so that all memory is held. A
// delivery takes that of the first as soon as it has lasted a second, over HTTP/1.1 and over one connection of HTTP/2.
func TestUpload_evicted_isAnswered503(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", version), func(t *testing.T) {
			t.Parallel()
			const largest = 64 << 10
			b := setup(t, func(o *ingest.Options) {
				o.Settings.QueueBytes = 64 << 10
				for name, ep := range o.Endpoints {
					ep.MaxBody = largest
					o.Endpoints[name] = ep
				}
			})
			web := httptest.NewUnstartedServer(b.server.Handler())
			web.EnableHTTP2 = version == 2
			web.Config.ReadTimeout = time.Minute
			web.StartTLS()
			t.Cleanup(web.Close)
			b.url, b.client = web.URL, web.Client()
			answered := b.stall(t, largest, largest/2+1, largest)
			b.stall(t, largest, 8<<10+1, largest+16<<10)
			if a := b.post(t, "stripe", b.invoice(t, 1)); a.status != http.StatusServiceUnavailable {
				t.Errorf("a delivery beside new uploads: status %d", a.status)
			}
			b.waitAnswer(t, "stripe", b.invoice(t, 1), http.StatusOK)
			want := fmt.Sprintf("HTTP/%d 503 urn:postern:problem:too-slow", version)
			if got := <-answered; got != want {
				t.Errorf("the client that stopped: %s, want %s", got, want)
			}
		})
	}
}

// stall announces a body, sends a part of it, and waits until all uploads hold that many bytes. The channel gets the answer.
func (b *testBundle) stall(t *testing.T, announced int64, sent, held int) <-chan string {
	t.Helper()
	body, write := io.Pipe()
	t.Cleanup(func() { _ = write.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/webhooks/stripe", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = announced
	answered := make(chan string, 1)
	go func() {
		a, err := b.client.Do(req)
		if err != nil {
			answered <- err.Error()
			return
		}
		defer func() { _ = a.Body.Close() }()
		text, _ := io.ReadAll(a.Body)
		_, problem, _ := strings.Cut(string(text), `"type":"`)
		problem, _, _ = strings.Cut(problem, `"`)
		answered <- fmt.Sprintf("HTTP/%d %d %s", a.ProtoMajor, a.StatusCode, problem)
	}()
	if _, err := io.WriteString(write, strings.Repeat("x", sent)); err != nil {
		t.Fatal(err)
	}
	b.waitGauge(t, "postern_held_bytes", "", held)
	return answered
}

// waits waits until a source has n deliveries in the queue.
func (b *testBundle) waits(t *testing.T, source string, n int) {
	t.Helper()
	b.waitGauge(t, "postern_queue_deliveries", source, n)
}

// waitGauge waits until a metric has a value for a source; "": a metric without sources.
func (b *testBundle) waitGauge(t *testing.T, name, source string, want int) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() error {
		if got := b.gauge(t, name, source); got != float64(want) {
			return fmt.Errorf("%s of %q is %v, want %d", name, source, got, want)
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

// Bodies that wait are counted against their source's share of the memory, also where their senders have gone; the others'
// still fit.
func TestMemoryIsSharedToo(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 })
	large := func(source string, n int) *provider.Delivery {
		text := fmt.Sprintf("large %d", n)
		return b.sign(t, source, provider.Sample{Body: []byte(text + strings.Repeat(" ", size-len(text)))})
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for n := range fit {
		b.send(t, ctx, "many", large("many", n))
	}
	b.waits(t, "many", fit)
	b.post(t, "many", large("many", fit)).refused(t, 503, "overloaded")
	leave()
	b.post(t, "many", large("many", fit)).refused(t, 503, "overloaded")
	var others []<-chan answer
	for n := range 2 {
		others = append(others, b.send(t, t.Context(), "stripe", large("stripe", 1+n)))
		b.waits(t, "stripe", 1+n)
	}
	b.run(t)
	for _, other := range others {
		(<-other).receipt(t)
	}
	b.waitAnswer(t, "many", large("many", fit), http.StatusOK)
	b.waitRows(t, fit+3, `events`)
}

// gated is a provider that verifies nothing before its gate is open, but bodies of one byte.
type gated struct {
	sim.Provider
	open, entered chan struct{}
}

func (gated) Name() string { return "gated" }

func (g gated) Verify(_ *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	if len(d.Body) > 1 {
		g.entered <- struct{}{}
		<-g.open
	}
	return provider.Verification{Scheme: "none"}, nil
}

func (gated) Identify(_ *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e := provider.Event{Type: "thing", Fingerprint: provider.BodyFingerprint(d.Body)}
	provider.NameByContent(&e, d.Body)
	return []provider.Event{e}, nil
}

// As many large bodies are read at once as there are processors; others wait for their turn, and no longer than a request may. Small ones
// pass, and so does a large one after a provider that panicked over its turn.
func TestLargeBodiesTakeTurns(t *testing.T) {
	t.Parallel()
	g := gated{open: make(chan struct{}), entered: make(chan struct{}, 100)}
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Deadline = 2 * time.Second
		ep := o.Endpoints["panic"]
		ep.Provider = g
		o.Endpoints["gated"] = ep
	})
	post := func(source string, size int, fill byte) answer {
		a, err := b.try(t.Context(), source, &provider.Delivery{Body: bytes.Repeat([]byte{fill}, size), Header: http.Header{}})
		if err != nil {
			t.Error(err)
		}
		return a
	}
	const large = 64 << 10
	for range 2 * runtime.GOMAXPROCS(0) {
		post("panic", large, 'x').refused(t, http.StatusInternalServerError, "internal")
	}
	answers := make(chan answer, runtime.GOMAXPROCS(0))
	for i := range runtime.GOMAXPROCS(0) {
		go func() { answers <- post("gated", large, byte('a'+i)) }()
	}
	for range runtime.GOMAXPROCS(0) {
		select {
		case <-g.entered:
		case <-time.After(30 * time.Second):
			t.Fatal("a turn is not given back")
		}
	}
	post("gated", 1, 'x').receipt(t)
	post("gated", large, 'z').refused(t, http.StatusServiceUnavailable, "overloaded")
	if len(g.entered) > 0 {
		t.Error("one body more was read than there are processors")
	}
	close(g.open)
	for range runtime.GOMAXPROCS(0) {
		(<-answers).receipt(t)
	}
	post("gated", large, 'z').receipt(t)
}
