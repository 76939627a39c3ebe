package admin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
)

// Strangers learn that a process is not ready, not why, and cannot make it ask its database more than once a second.
func TestScrapedReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var log bytes.Buffer
		h := admin.NewScrape(admin.Options{Metrics: http.NotFoundHandler(), Logger: slog.New(slog.NewTextHandler(&log, nil)), Ready: func(context.Context) error {
			if asked.Add(1) > 1 {
				return nil
			}
			return errors.New("postgresql at db.internal: no answer")
		}})
		get := func() (int, string) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			return rec.Code, rec.Body.String()
		}
		for range 100 {
			if status, body := get(); status != http.StatusServiceUnavailable || body != "not ready\n" {
				t.Fatalf("%d %q", status, body)
			}
		}
		if n := asked.Load(); n != 1 || strings.Count(log.String(), "db.internal") != 1 {
			t.Errorf("asked %d times within a second, want once; logged %s", n, &log)
		}
		<-time.After(1001 * time.Millisecond) // of the bubble's clock, which waits for nobody
		if status, body := get(); status != http.StatusOK || body != "ready\n" {
			t.Errorf("a second later: %d %q", status, body)
		}
	})
}
