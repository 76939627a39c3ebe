package ingest_test

import (
	"bufio"
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

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

// hostileBodies are bodies that a sender can sign but should not.
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

// endpointsOfAll returns a source of each provider, with a secret.
func endpointsOfAll(secret string) map[string]ingest.Endpoint {
	endpoints := map[string]ingest.Endpoint{}
	for _, p := range all.All() {
		endpoints[p.Name()] = ingest.Endpoint{Number: 1, Provider: p, MaxBody: maxBody,
			Config: &provider.Source{Name: p.Name(), Accounts: []string{"*"},
				URL: "https://hooks.example/webhooks/" + p.Name(), Keys: new(signature.Keys), Tolerance: time.Hour,
				Secrets: []provider.Secret{{Name: "main", Value: []byte(secret + signature.DemoSuffix)}}}}
	}
	return endpoints
}

// hostileClient is a gateway with a source of each provider, and the number of requests that it
// got.
type hostileClient struct {
	*testBundle
	handler  http.Handler
	requests int
}

// setupHostileClient returns a gateway that does not write yet, and its log.
func setupHostileClient(t *testing.T) (*hostileClient, *logBuffer) {
	t.Helper()
	log, tune := captureLog(slog.LevelInfo)
	db, s := testkit.Database(t), &hostileClient{}
	endpoints := endpointsOfAll("the_secret")
	numberEndpoints(t, db, endpoints)
	s.testBundle = setupIdle(t, db, func(o *ingest.Options) {
		tune(o)
		o.Endpoints, o.Publish = endpoints, func(...stream.Event) {}
		o.Settings.Deadline, o.Settings.StallAfter, o.Settings.AcquireTimeout = time.Minute, time.Minute, time.Minute
	})
	s.endpoints, s.handler = endpoints, s.server.Handler()
	return s, log
}

// TestRoutes_hostileRequests_areClientErrors sends hostile paths, queries, headers and bodies to
// each route of the router, and to each provider, signed where the provider can sign them.
func TestRoutes_hostileRequests_areClientErrors(t *testing.T) {
	t.Parallel()
	s, log := setupHostileClient(t)
	t.Run("requests", func(t *testing.T) { // the log is complete when the function returns
		s.run(t)
		s.sendAll(t)
	})
	for _, line := range log.all(t) {
		if text := fmt.Sprint(line); strings.Contains(text, "SQLSTATE") {
			t.Errorf("PostgreSQL did not store a request: %.500s", text)
		}
	}
}

func (s *hostileClient) sendAll(t *testing.T) {
	t.Helper()
	routes := append(s.server.Routes(), &echo.Route{Method: "BREW", Path: "/webhooks/:source"})
	for _, r := range routes {
		for _, text := range hostileTexts {
			s.request(t, r.Method, strings.ReplaceAll(r.Path, ":source", url.PathEscape(text)), nil, "{}")
			s.request(t, r.Method, strings.ReplaceAll(r.Path, ":source", "stripe")+"?"+text, nil, "{}")
			s.request(t, r.Method, strings.ReplaceAll(r.Path, ":source", "slack")+"?challenge="+text, nil, "{}")
		}
	}
	accepted := 0
	for _, name := range slices.Sorted(maps.Keys(s.endpoints)) {
		accepted += s.bodies(t, name)
		s.headers(t, name)
	}
	t.Logf("%d routes, %d providers, %d requests, %d accepted", len(routes), len(s.endpoints), s.requests, accepted)
	if accepted < 100 {
		t.Errorf("%d requests were accepted: are bodies signed?", accepted)
	}
}

// signed returns a delivery as the provider would send it; nil if the provider cannot sign this
// body.
func (s *hostileClient) signed(name string, sample provider.Sample) *provider.Delivery {
	ep := s.endpoints[name]
	d, err := ep.Provider.Sign(ep.Config, sample, time.Now())
	if err != nil {
		return nil
	}
	return d
}

// bodies sends each body, signed and unsigned, and returns how many were accepted.
func (s *hostileClient) bodies(t *testing.T, name string) (accepted int) {
	sample := s.endpoints[name].Provider.Samples()[0]
	for _, body := range hostileBodies {
		s.request(t, http.MethodPost, "/webhooks/"+name, nil, body)
		sample.Body = []byte(body)
		if d := s.signed(name, sample); d != nil && s.deliver(t, name, d) < 300 {
			accepted++
		}
	}
	return accepted
}

// headers replaces, doubles and removes each header of a signed delivery, and its query.
func (s *hostileClient) headers(t *testing.T, name string) {
	t.Helper()
	d := s.signed(name, s.endpoints[name].Provider.Samples()[0])
	if d == nil {
		t.Fatalf("%s: no signed sample", name)
	}
	if status := s.deliver(t, name, d); status >= 300 {
		t.Errorf("%s: sample: status %d", name, status)
	}
	signed := d.Header
	names := append(slices.Collect(maps.Keys(signed)), "Idempotency-Key", "Authorization", "Content-Type",
		"Content-Encoding", "Transfer-Encoding", "Traceparent", "Ce-Id", "Ce-Specversion", "Ce-Type", "Ce-Source",
		"Ce-Subject", "Ce-Time", "X-Forwarded-For")
	every := 1
	if testing.Short() { // each text is sent with a third of the headers
		every = 3
	}
	for n, header := range names {
		values := [][]string{nil, {}, {"a", "a"}, append(slices.Clone(signed[header]), "a")}
		for i := n % every; i < len(hostileTexts); i += every {
			values = append(values, []string{hostileTexts[i]})
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

func (s *hostileClient) deliver(t *testing.T, name string, d *provider.Delivery) (status int) {
	t.Helper()
	return s.request(t, http.MethodPost, "/webhooks/"+name+"?"+d.Query, d.Header, string(d.Body))
}

// request sends a request, and fails the test if the response is an internal error.
func (s *hostileClient) request(t *testing.T, method, target string, header http.Header, body string) (status int) {
	t.Helper()
	s.requests++
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

// FuzzHandler sends arbitrary requests to sources of every provider whose secrets the client does
// not know. There is no database, because only a verified delivery may need one. No request may
// cause an internal error, a panic or a response that looks like success.
func FuzzHandler(f *testing.F) {
	endpoints := endpointsOfAll("nobody_knows_it")
	guessed := endpointsOfAll("guessed")
	for _, name := range slices.Sorted(maps.Keys(guessed)) { // the same numbers of seeds in each run
		ep := guessed[name]
		d, err := ep.Provider.Sign(ep.Config, ep.Provider.Samples()[0], time.Unix(1_800_000_000, 0))
		testkit.Must(f, err)
		f.Add(requestText(name, d))
	}
	for _, seed := range []string{
		"GET /webhooks/slack?challenge=x HTTP/1.1\r\nHost: h\r\n\r\n",
		"HEAD /webhooks/zoom HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /webhooks/%2e%2e/stripe HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
		"POST /webhooks/stripe HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /webhooks/twilio?bodySHA256=00 HTTP/1.1\r\nHost: h\r\nContent-Type: text/html; " +
			"charset=\"\r\nContent-Length: 3\r\n\r\na=b", "PUT / HTTP/1.0\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	server, err := ingest.New(ingest.Options{Endpoints: endpoints, Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Now: func() time.Time { return time.Unix(1_800_000_000, 0) },
		Settings: ingest.Settings{Deadline: time.Second, StallAfter: time.Second, Queue: 16, QueueBytes: 64 << 20,
			BatchMax: 16, BatchBytes: 1 << 20, Writers: 1,
			RejectionsMaxCount: 10, RejectionsMaxBytes: 1 << 20, RejectionsMaxBody: 1 << 20}})
	testkit.Must(f, err)
	handler := server.Handler()
	f.Fuzz(func(t *testing.T, text []byte) {
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil || strings.HasSuffix(req.URL.Path, "z") { // not HTTP; or /readyz, which queries the database
			return
		}
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, req)
		switch rec.Code {
		case http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestTimeout,
			http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		case http.StatusNoContent:
			if req.Method != http.MethodOptions {
				t.Errorf("%s %s: status %d", req.Method, req.URL, rec.Code)
			}
		default:
			t.Errorf("%s %s: status %d, %s", req.Method, req.URL, rec.Code, rec.Body)
		}
	})
}

// requestText returns a delivery as it is sent over a connection.
func requestText(source string, d *provider.Delivery) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST /webhooks/%s?%s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n", source, d.Query, len(d.Body))
	_ = d.Header.Write(&b) // a buffer never returns an error
	b.WriteString("\r\n")
	b.Write(d.Body)
	return b.Bytes()
}
