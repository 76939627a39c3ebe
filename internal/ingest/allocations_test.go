//go:build !race

package ingest_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/stream"
)

// What a delivery allocates is bounded: its way through the handler, its line in the log and a commit of its own, without net/http's part and the publisher's. It is counted over the whole process, so
// nothing runs beside it, nor the race detector, under which pools lose what they hold.
func TestAllocationsPerDelivery(t *testing.T) {
	const deliveries, most = 200, 50
	b := setup(t, func(o *ingest.Options) {
		o.Publish = func(...stream.Event) {}
		o.Logger = slog.New(slog.NewJSONHandler(io.Discard, nil))
	})
	var waiting []*http.Request
	for n := range 1 + deliveries { // AllocsPerRun runs once before it counts
		d := b.invoice(t, n)
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/stripe", bytes.NewReader(d.Body))
		req.Header = d.Header
		waiting = append(waiting, req)
	}
	handler, answers := b.server.Handler(), nowhere{header: http.Header{}}
	got := testing.AllocsPerRun(deliveries, func() {
		answers.status = 0
		handler.ServeHTTP(&answers, waiting[0])
		if waiting = waiting[1:]; answers.status != http.StatusOK {
			t.Fatalf("status %d", answers.status)
		}
	})
	if t.Logf("%v allocations", got); got > most {
		t.Errorf("%v allocations for a delivery, want at most %d", got, most)
	}
}

// nowhere takes answers and keeps their status.
type nowhere struct {
	header http.Header
	status int
}

func (w *nowhere) Header() http.Header { return w.header }

func (w *nowhere) WriteHeader(status int) { w.status = status }

func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }
