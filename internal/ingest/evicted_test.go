package ingest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
			testkit.Eventually(t, 20*time.Second, func() error {
				if a, err := b.try(t.Context(), "stripe", b.invoice(t, 1)); err != nil || a.status != http.StatusOK {
					return fmt.Errorf("status %d, %v", a.status, err)
				}
				return nil
			})
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
	testkit.Eventually(t, 20*time.Second, func() error {
		if got := b.gauge(t, "postern_held_bytes", ""); got != float64(held) {
			return fmt.Errorf("%.0f bytes are held, want %d", got, held)
		}
		return nil
	})
	return answered
}
