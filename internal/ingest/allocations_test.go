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

// The allocations of a delivery are bounded: handler, log line and its own commit, without net/http
// and the publisher. They are counted for the whole process, so nothing else may run at the same
// time. Under the race detector pools drop their content, so the test is excluded there.
func TestHandler_oneDelivery_allocationsAreBounded(t *testing.T) {
	const deliveries, maxAllocations = 200, 50
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
	handler, res := b.server.Handler(), discardResponse{header: http.Header{}}
	got := testing.AllocsPerRun(deliveries, func() {
		res.status = 0
		handler.ServeHTTP(&res, waiting[0])
		if waiting = waiting[1:]; res.status != http.StatusOK {
			t.Fatalf("status %d", res.status)
		}
	})
	if t.Logf("%v allocations", got); got > maxAllocations {
		t.Errorf("%v allocations for a delivery, want at most %d", got, maxAllocations)
	}
}

// discardResponse keeps only the status of a response.
type discardResponse struct {
	header http.Header
	status int
}

func (w *discardResponse) Header() http.Header { return w.header }

func (w *discardResponse) WriteHeader(status int) { w.status = status }

func (w *discardResponse) Write(p []byte) (int, error) { return len(p), nil }
