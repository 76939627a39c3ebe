package ingest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// FuzzDoor hands whole requests of strangers to sources of every provider, whose secrets nobody knows. Without a database: nothing
// that is not proven may need one. No request makes a fault, a panic or an answer of ours that looks like success.
func FuzzDoor(f *testing.F) {
	endpoints := map[string]ingest.Endpoint{}
	for _, p := range all.All() {
		src := &provider.Source{Name: p.Name(), Accounts: []string{"*"}, URL: "https://hooks.example/webhooks/" + p.Name(),
			Secrets: []provider.Secret{{Name: "unknown", Value: []byte("nobody_knows_it_for_postern_dev")}}}
		endpoints[p.Name()] = ingest.Endpoint{Number: 1, Provider: p, Config: src, MaxBody: 1 << 20}
		for _, s := range p.Samples()[:1] {
			forged := *src
			forged.Secrets = []provider.Secret{{Name: "guessed", Value: []byte("guessed_for_postern_dev")}}
			d, err := p.Sign(&forged, s, time.Unix(1_800_000_000, 0))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(requestText(p.Name(), d))
		}
	}
	for _, seed := range []string{
		"GET /webhooks/slack?challenge=x HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /webhooks/zoom HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /webhooks/%2e%2e/stripe HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}", "POST /webhooks/stripe HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /webhooks/twilio?bodySHA256=00 HTTP/1.1\r\nHost: h\r\nContent-Type: text/html; charset=\"\r\nContent-Length: 3\r\n\r\na=b", "PUT / HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	server, err := ingest.New(ingest.Options{Endpoints: endpoints, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Now: func() time.Time { return time.Unix(1_800_000_000, 0) },
		Settings: ingest.Settings{Deadline: time.Second, StallAfter: time.Second, Queue: 16, QueueBytes: 64 << 20, BatchMax: 16, BatchBytes: 1 << 20, Writers: 1,
			RejectionsMaxCount: 10, RejectionsMaxBytes: 1 << 20, RejectionsMaxBody: 1 << 20}})
	if err != nil {
		f.Fatal(err)
	}
	handler := server.Handler()
	f.Fuzz(func(t *testing.T, text []byte) {
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil || strings.HasSuffix(req.URL.Path, "z") { // not HTTP; or /readyz, which asks the database
			return
		}
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		switch rec.Code {
		case http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		case http.StatusNoContent:
			if req.Method != http.MethodOptions {
				t.Errorf("%s %s: status %d", req.Method, req.URL, rec.Code)
			}
		default:
			t.Errorf("%s %s: status %d, %s", req.Method, req.URL, rec.Code, rec.Body)
		}
	})
}

// requestText is a delivery as it goes over the wire.
func requestText(source string, d *provider.Delivery) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /webhooks/%s?%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n", source, d.Query, len(d.Body))
	_ = d.Header.Write(&b) // a buffer takes everything
	b.WriteString("\r\n")
	b.Write(d.Body)
	return b.Bytes()
}
