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
)

// Bodies in memory are bounded together, also those whose sender has gone but which still wait to be appended.
func TestBodiesInMemoryAreBounded(t *testing.T) {
	t.Parallel()
	const size, fit = 100_000, 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) { o.Settings.QueueBytes = 2*size*fit + size/2 }) // a source's share is half
	large := func(n int) *provider.Delivery {
		text := fmt.Sprintf(`{"id":"evt_%d"}`, n)
		return b.sign(t, "stripe", provider.Sample{Body: []byte(text + strings.Repeat(" ", size-len(text)))})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan answer, fit+1)
	for n := range fit + 1 {
		w := b.send(t, ctx, "stripe", large(n))
		go func() { answers <- <-w }()
	}
	full := <-answers // one of them is too many, the others wait
	full.refused(t, 503, "overloaded")
	b.waits(t, "stripe", fit) // one that is still being read would go with its sender
	cancel()                  // now the others' senders are gone, but their bodies are not
	for range fit {
		<-answers
	}
	b.post(t, "stripe", large(fit+1)).refused(t, 503, "overloaded")
	b.run(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		a, err := b.try(t.Context(), "stripe", large(fit+1))
		if err != nil || a.status != 200 {
			return fmt.Errorf("status %d %v", a.status, err)
		}
		return nil
	})
	testkit.Eventually(t, 20*time.Second, func() error { // another writer may still have some of them in hand
		if n := b.count(t, `SELECT count(*) FROM events`); n != fit+1 {
			return fmt.Errorf("%d events, want %d", n, fit+1)
		}
		return nil
	})
}

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
	testkit.Eventually(t, 10*time.Second, func() error {
		if n := b.count(t, `SELECT count(*) FROM rejections WHERE length(body) = 1024 AND bytes = $1`, maxBody); n != 90 {
			return fmt.Errorf("%d rejections kept, cut and marked so", n)
		}
		return nil
	})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // pools let go of what they hold with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
