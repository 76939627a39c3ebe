package ingest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/signature"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// hostileTexts are values that a part of a path, a query or a header should not have.
var hostileTexts = []string{
	"", " ", "\x00", "a\x00b", "\xff", "a\xc3", "\x1b[2J\u202e", strings.Repeat("x", 70_000), "%", "%00", "%ff", "%zz",
	"../..", "'", "-1", "0", "9223372036854775808", "99999999999999999999999", "1e400", "NaN", "0000-01-01",
	"9999-12-31T23:59:59.999999999Z", "null", "[]", `"`, `"\`, "t=1,v1=00", "a\r\nb: c", "\u00e4",
}

// hostileBodies are bodies that a sender may sign and should not.
var hostileBodies = []string{
	"", "\x00", "\xff", "null", "[]", "{}", `""`, "{", "\ufeff{}", "a=%00&a=%ff&a=1", "%zz=;&&",
	`{"id": "\u0000"}`, `{"id": "\ud800"}`, "{\"id\": \"\xff\"}", `{"id": 1e400000, "created": 1e400000}`,
	`{"id": -1, "created": -1, "updated_at": -1}`, `{"id": 123456789012345678901234567890}`,
	`{"id": {}, "type": [], "data": null, "created": "x"}`, `{"id": "a", "id": "\u0000", "type": "\u0000"}`,
	`{"id": "` + strings.Repeat("x", 100_000) + `", "type": "` + strings.Repeat("x", 100_000) + `"}`,
	strings.Repeat("[", 100_000),
	strings.Repeat(`{"id":`, 2000) + "1" + strings.Repeat("}", 2000),
	"[" + strings.Repeat("1e100000,", 20_000) + "1]",
	`{"id": "a", "object": "event", "type": "customer.updated", "created": 9e18}`,
}

// strangers are sources of all providers, and what their requests are answered.
type strangers struct {
	server    *ingest.Server
	handler   http.Handler
	endpoints map[string]ingest.Endpoint
	sent      int
	// log has the warnings; it is complete when stop has returned.
	log  *bytes.Buffer
	stop func()
}

func setupStrangers(t *testing.T) *strangers {
	t.Helper()
	db := testkit.Database(t)
	s, names := &strangers{endpoints: map[string]ingest.Endpoint{}, log: new(bytes.Buffer)}, map[string]string{}
	for _, p := range all.All() {
		names[p.Name()] = p.Name()
		s.endpoints[p.Name()] = ingest.Endpoint{Provider: p, MaxBody: maxBody, Config: &provider.Source{Name: p.Name(),
			Accounts: []string{"*"}, URL: "https://hooks.example/webhooks/" + p.Name(), Keys: new(signature.Keys),
			Tolerance: time.Hour, Secrets: []provider.Secret{{Name: "main", Value: []byte("the_secret" + signature.DemoMark)}}}}
	}
	known, err := events.RegisterSources(t.Context(), db.Pool, names)
	if err != nil {
		t.Fatal(err)
	}
	for name, ep := range s.endpoints {
		ep.Number = known.Number[name]
		s.endpoints[name] = ep
	}
	s.server, err = ingest.New(ingest.Options{Endpoints: s.endpoints, Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		Metrics: prometheus.NewRegistry(), Now: time.Now, Pool: db.Role(t, "gateway"), Publish: func(...stream.Event) {},
		Settings: ingest.Settings{Deadline: time.Minute, StallAfter: time.Minute, AcquireWithin: time.Minute,
			Queue: 4096, QueueBytes: 64 << 20, BatchMax: 256, BatchBytes: 8 << 20, Writers: 2,
			RejectionsMaxCount: 1000, RejectionsMaxBytes: 16 << 20, RejectionsMaxBody: maxBody}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.server.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(s.stop)
	s.handler = s.server.Handler()
	return s
}

// TestRoutes_hostileRequests_areClientErrors sends hostile paths, queries, headers and bodies to each
// route of the router, and to each provider, signed where the provider can sign them.
func TestRoutes_hostileRequests_areClientErrors(t *testing.T) {
	t.Parallel()
	s := setupStrangers(t)
	routes := append(s.server.Routes(), &echo.Route{Method: "BREW", Path: "/webhooks/:source"})
	for _, r := range routes {
		for _, text := range hostileTexts {
			s.send(t, r.Method, strings.ReplaceAll(r.Path, ":source", url.PathEscape(text)), nil, "{}")
		}
		for _, query := range hostileTexts {
			s.send(t, r.Method, strings.ReplaceAll(r.Path, ":source", "stripe")+"?"+query, nil, "{}")
			s.send(t, r.Method, strings.ReplaceAll(r.Path, ":source", "slack")+"?challenge="+query, nil, "{}")
		}
	}
	accepted := 0
	for _, name := range slices.Sorted(maps.Keys(s.endpoints)) {
		accepted += s.bodies(t, name)
		s.headers(t, name)
	}
	t.Logf("%d routes, %d providers, %d requests, %d accepted", len(routes), len(s.endpoints), s.sent, accepted)
	s.stop()
	if line := regexp.MustCompile(`.*SQLSTATE.*`).FindString(s.log.String()); line != "" {
		t.Errorf("PostgreSQL did not store a request: %.500s", line)
	}
	if accepted < 100 {
		t.Errorf("%d requests were accepted: are bodies signed?", accepted)
	}
}

// sign makes a delivery as the provider would; nil where it cannot sign this.
func (s *strangers) sign(name string, sample provider.Sample) *provider.Delivery {
	ep := s.endpoints[name]
	d, err := ep.Provider.Sign(ep.Config, sample, time.Now())
	if err != nil {
		return nil
	}
	return d
}

// bodies sends each body, signed and not, and returns how many were accepted.
func (s *strangers) bodies(t *testing.T, name string) (accepted int) {
	sample := s.endpoints[name].Provider.Samples()[0]
	for _, body := range hostileBodies {
		s.send(t, http.MethodPost, "/webhooks/"+name, nil, body)
		sample.Body = []byte(body)
		if d := s.sign(name, sample); d != nil && s.deliver(t, name, d) < 300 {
			accepted++
		}
	}
	return accepted
}

// headers replaces, doubles and removes each header of a delivery that is signed, and its query.
func (s *strangers) headers(t *testing.T, name string) {
	t.Helper()
	d := s.sign(name, s.endpoints[name].Provider.Samples()[0])
	if d == nil {
		t.Fatalf("%s: no signed sample", name)
	}
	if status := s.deliver(t, name, d); status >= 300 {
		t.Errorf("%s: sample answered %d", name, status)
	}
	signed := d.Header
	names := append(slices.Collect(maps.Keys(signed)), "Idempotency-Key", "Authorization", "Content-Type",
		"Content-Encoding", "Transfer-Encoding", "Traceparent", "Ce-Id", "Ce-Specversion", "Ce-Type", "Ce-Source",
		"Ce-Subject", "Ce-Time", "X-Forwarded-For")
	for _, header := range names {
		values := [][]string{nil, {}, {"a", "a"}, append(slices.Clone(signed[header]), "a")}
		for _, text := range hostileTexts {
			values = append(values, []string{text})
		}
		for _, v := range values {
			d.Header = signed.Clone()
			d.Header[header] = v
			s.deliver(t, name, d)
		}
	}
	d.Header = signed
	for _, query := range hostileTexts {
		d.Query = query
		s.deliver(t, name, d)
	}
}

func (s *strangers) deliver(t *testing.T, name string, d *provider.Delivery) (status int) {
	t.Helper()
	return s.send(t, http.MethodPost, "/webhooks/"+name+"?"+d.Query, d.Header, string(d.Body))
}

// send fails the test where a request is answered as a fault of the server.
func (s *strangers) send(t *testing.T, method, target string, header http.Header, body string) (status int) {
	t.Helper()
	s.sent++
	path, query, _ := strings.Cut(target, "?")
	req := httptest.NewRequest(method, "http://127.0.0.1:8080"+path, strings.NewReader(body))
	req.URL.RawQuery = query
	maps.Copy(req.Header, header)
	res := httptest.NewRecorder()
	s.handler.ServeHTTP(res, req)
	if res.Code >= 500 {
		t.Errorf("%s %.200q %s %.100q: %d %s", method, target, fmt.Sprintf("%.300q", header), body, res.Code, res.Body)
	}
	return res.Code
}
