package ingest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestHandler_wrongPathOrMethod_isRejected(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, nil, nil)
	d := b.invoice(t, 1)
	for _, tc := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{http.MethodPost, "/webhooks/nobody", 404, "unknown-source"},
		{http.MethodPost, "/webhooks/", 404, "not-found"},
		{http.MethodPost, "/webhooks/stripe/more", 404, "unknown-source"},
		{http.MethodPost, "/", 404, "not-found"},
		{http.MethodPost, "/webhooks/%00%ff", 404, "unknown-source"},
		{http.MethodGet, "/webhooks/stripe", 405, "method"},
		{http.MethodPut, "/webhooks/stripe", 405, "method"},
		{http.MethodDelete, "/webhooks/nobody", 405, "method"},
		{http.MethodPost, "/readyz", 405, "method"},
	} {
		a := b.request(t, tc.method, tc.path, d)
		a.wantProblem(t, tc.status, tc.kind)
		if allow := a.header.Get("Allow"); tc.status == 405 && tc.path != "/readyz" &&
			!strings.Contains(allow, http.MethodPost) {
			t.Errorf("%s %s: Allow %q", tc.method, tc.path, allow)
		}
	}
}

func TestHandler_contentEncoding_isRejected(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for n, tc := range []struct {
		encoding []string
		status   int
	}{{[]string{"gzip"}, 415}, {[]string{"br"}, 415}, {[]string{"identity, gzip"}, 415},
		{[]string{"identity", "gzip"}, 415},
		{[]string{"identity"}, 200}, {[]string{"Identity"}, 200}, {[]string{""}, 200}} {
		d := b.invoice(t, n+1)
		d.Header["Content-Encoding"] = tc.encoding
		a := b.post(t, "stripe", d)
		if tc.status == 200 {
			a.receipt(t)
			continue
		}
		a.wantProblem(t, tc.status, "encoding")
	}
}

// dial opens a connection that ends with the test, at the latest after 30 s.
func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testkit.Must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return conn
}

// readResponse reads the response to a POST.
func readResponse(t *testing.T, conn net.Conn) response {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	return response{status: res.StatusCode, header: res.Header, body: text}
}

// raw posts over its own connection, with further headers ("Name: value"), and reads the response.
func (b *testBundle) raw(t *testing.T, path string, body io.Reader, headers ...string) (response, net.Conn) {
	t.Helper()
	conn := dial(t, b.url)
	head := append([]string{"POST " + path + " HTTP/1.1", "Host: postern"}, headers...)
	_, err := io.WriteString(conn, strings.Join(head, "\r\n")+"\r\n\r\n")
	testkit.Must(t, err)
	if body != nil {
		go func() { _, _ = io.Copy(conn, body) }() // the response may come before all bytes are sent
	}
	return readResponse(t, conn), conn
}

// wantClosed checks that the server has closed the connection.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection is still open: %d bytes, %v", n, err)
	}
}

func TestHandler_bodyOverLimit_isRejectedUnread(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, nil, nil)
	b.serve(t, shortTimeout)
	// The client sends no byte of the body, so the response cannot depend on it.
	a, conn := b.raw(t, "/webhooks/stripe", nil, "Content-Length: 10000000000")
	a.wantProblem(t, 413, "too-large")
	wantClosed(t, conn)
	// A client with Expect: 100-continue is not told to continue.
	a, conn = b.raw(t, "/webhooks/stripe", nil, "Expect: 100-continue", "Content-Length: 1048577")
	a.wantProblem(t, 413, "too-large")
	wantClosed(t, conn)
	b.wantCounter(t, 2, "postern_deliveries_total", "source=stripe", "result=too_large")
}

// Senders without keep-alive must get the status, too: a reset may reach them before they have read
// it.
func TestReject_unreadBodyOfLastRequest_connectionEndsInOrder(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, nil, nil)
	b.serve(t, shortTimeout)
	const announced = "Content-Length: 10000000"
	for name, c := range map[string]struct {
		path    string
		headers []string
	}{
		"body too large":    {"/webhooks/stripe", []string{announced}},
		"chunked too large": {"/webhooks/stripe", []string{"Transfer-Encoding: chunked"}},
		"encoding":          {"/webhooks/stripe", []string{announced, "Content-Encoding: br"}},
		"no such source":    {"/webhooks/none", []string{announced}},
		"no such route":     {"/none", []string{announced}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part := strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", 1<<16, strings.Repeat("x", 1<<16)), maxBody>>16+1)
			a, conn := b.raw(t, c.path, strings.NewReader(part), append(c.headers, "Connection: close")...)
			if a.status/100 != 4 {
				t.Errorf("status %d, want 4xx", a.status)
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("read after the response: %d bytes, %v; want the end of the stream", n, err)
			}
		})
	}
}

// chunkedReader hides a reader's length, so that the client sends chunks.
type chunkedReader struct{ io.Reader }

func TestHandler_chunkedBody_isLimited(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	send := func(d *provider.Delivery) response {
		a, err := b.do(t.Context(), http.MethodPost, "/webhooks/stripe", d.Header,
			chunkedReader{bytes.NewReader(d.Body)})
		testkit.Must(t, err)
		return a
	}
	for n, size := range []int{0, 1000, maxBody - 1, maxBody} {
		s := provider.Sample{Body: fmt.Appendf(nil, `{"id":"evt_%d"}`, n)}
		s.Body = append(s.Body, bytes.Repeat([]byte(" "), max(0, size-len(s.Body)))...)
		d := b.sign(t, "stripe", s)
		if r := send(d).receipt(t); r.EventID != fmt.Sprintf("evt_%d", n) {
			t.Errorf("%d bytes: %+v", size, r)
		}
	}
	d := b.sign(t, "stripe", provider.Sample{Body: bytes.Repeat([]byte("x"), maxBody+1)})
	send(d).wantProblem(t, 413, "too-large")
	// an endless body is cut off at the limit
	b.serve(t, shortTimeout) // then the server closes the connection
	chunk := fmt.Sprintf("%x\r\n%s\r\n", maxBody/4, strings.Repeat("x", maxBody/4))
	a, conn := b.raw(t, "/webhooks/stripe", strings.NewReader(strings.Repeat(chunk, 5)), "Transfer-Encoding: chunked")
	a.wantProblem(t, 413, "too-large")
	wantClosed(t, conn)
	b.wantRows(t, 4, `events`)
}

// If a client disconnects, its event may be stored. A retry stores it once.
func TestHandler_clientDisconnects_eventIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	release := b.lockLog(t)
	d := b.invoice(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := b.try(ctx, "stripe", d); gone <- err }()
	b.waitBlocked(t, 1)
	cancel()
	if err := <-gone; err == nil {
		t.Error("a response came although the log was locked")
	}
	release()
	testkit.Eventually(t, time.Minute, func() error {
		if a := b.waitStatus(t, "stripe", d, http.StatusOK); !a.receipt(t).Duplicate {
			return fmt.Errorf("%s", a.body)
		}
		return nil
	})
}

// A sender that closes its half of the connection after the request still reads, so it gets its
// receipt.
func TestHandler_halfClosedConnection_getsReceipt(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, testkit.Database(t), nil)
	requestDone := make(chan (<-chan struct{}), 1)
	handler := b.server.Handler()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requestDone <- r.Context().Done() // net/http cancels it when the sender closes its half
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	conn := dial(t, web.URL)
	d := b.invoice(t, 1)
	req := httptest.NewRequest(http.MethodPost, "/webhooks/stripe", bytes.NewReader(d.Body))
	req.Header = d.Header.Clone()
	testkit.Must(t, errors.Join(req.Write(conn), conn.(*net.TCPConn).CloseWrite()))
	select {
	case <-<-requestDone:
	case <-time.After(20 * time.Second):
		t.Fatal("the server does not notice the half-closed connection")
	}
	b.run(t) // nothing is written before this
	if r := readResponse(t, conn).receipt(t); r.ID == "" || r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
}

// An aborted handler is no internal error: the connection is dropped without a response.
func TestHandler_abortedByProvider_dropsConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *ingest.Options) {
		changeEndpoint(o, "panic", func(ep *ingest.Endpoint) {
			ep.Provider = panickingProvider{value: http.ErrAbortHandler} // as net/http allows
		})
	})
	if a, err := b.try(t.Context(), "panic", b.invoice(t, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %d %s, %v; want the connection dropped", a.status, a.body, err)
	}
	b.wantCounter(t, 0, "postern_panics_total")
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
}

func networks(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// postFrom posts to a source from an address, with the given X-Forwarded-For headers.
func postFrom(h http.Handler, method, source, remote string, forwarded ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "/webhooks/"+source+"?challenge=a", strings.NewReader("body"))
	req.RemoteAddr = remote
	for _, value := range forwarded {
		req.Header.Add("X-Forwarded-For", value)
	}
	req.Header.Set("Forwarded", "for=192.0.2.7")
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res
}

// The sender's address is the peer's address, or, behind trusted proxies, the address that the last
// of them reports. A sender cannot forge it.
func TestAllowFrom_proxies_usesSenderAddress(t *testing.T) {
	t.Parallel()
	b, log := setupAllowFrom(t, networks("10.0.0.0/8", "127.0.0.1/32", "fe80::/10"))
	handler := b.server.Handler()
	for _, tc := range []struct {
		remote    string
		forwarded []string
		want      int
	}{
		{"192.0.2.7:1234", nil, 405},
		{"192.0.3.7:1234", nil, 403},
		{"[2001:db8::9]:1234", nil, 405},
		{"[2001:db9::9]:1234", nil, 403},
		{"[::ffff:192.0.2.7]:1234", nil, 405},
		{"[::ffff:192.0.3.7]:1234", nil, 403},
		{"[2001:db8::9%eth0]:1234", nil, 405},
		{"192.0.3.7:1234", []string{"192.0.2.7"}, 403}, // not a trusted proxy
		{"10.1.2.3:1234", []string{"192.0.2.7"}, 405},
		{"[::ffff:10.1.2.3]:1234", []string{"192.0.2.7"}, 405},
		{"[fe80::1%eth0]:1234", []string{"192.0.2.7"}, 405},
		{"10.1.2.3:1234", []string{"192.0.2.7, 192.0.3.7"}, 403}, // the sender forged the first
		{"10.1.2.3:1234", []string{"192.0.2.7", "192.0.3.7"}, 403},
		{"10.1.2.3:1234", []string{"192.0.3.7", "192.0.2.7"}, 405},
		{"10.1.2.3:1234", []string{"192.0.3.7, 192.0.2.7 ,10.0.0.1, 127.0.0.1"}, 405},
		{"10.1.2.3:1234", []string{"192.0.3.7,192.0.2.7", "10.0.0.1"}, 405},
		{"10.1.2.3:1234", []string{"192.0.2.7, unknown"}, 403},
		{"10.1.2.3:1234", []string{"192.0.2.7, "}, 403},
		{"10.1.2.3:1234", []string{"192.0.2.7:443"}, 405},
		{"10.1.2.3:1234", []string{"[2001:db8::7]:443"}, 405},
		{"10.1.2.3:1234", []string{"[2001:db8::7]"}, 405},
		{"10.1.2.3:1234", []string{"::ffff:192.0.2.7"}, 405},
		{"10.1.2.3:1234", nil, 403}, // the proxy itself; Forwarded is ignored
		{"127.0.0.1:1", []string{"10.0.0.1"}, 403},
		{"@", nil, 403},
		{"", []string{"192.0.2.7"}, 403},
	} {
		if got := postFrom(handler, http.MethodGet, "stripe", tc.remote, tc.forwarded...).Code; got != tc.want {
			t.Errorf("from %q by way of %q: status %d, want %d", tc.remote, tc.forwarded, got, tc.want)
		}
	}
	for _, line := range log.withMessage(t, "delivery") {
		if remote := fmt.Sprint(line["remote"]); line["result"] != "forbidden" &&
			!strings.HasPrefix(remote, "192.0.2.") && !strings.HasPrefix(remote, "2001:db8::") {
			t.Errorf("the log has another sender: %v", line)
		}
	}
}

// setupAllowFrom returns a server whose sources allow few networks.
func setupAllowFrom(t *testing.T, proxies []netip.Prefix) (*testBundle, *logBuffer) {
	t.Helper()
	log, tune := captureLog(slog.LevelDebug) // level debug shows suppressed lines too
	return setupIdle(t, nil, func(o *ingest.Options) {
		tune(o)
		o.TrustedProxies = proxies
		changeEndpoint(o, "", func(ep *ingest.Endpoint) { ep.AllowFrom = networks("192.0.2.0/24", "2001:db8::/32") })
	}), log
}

// A sender that is not allowed gets no challenge either. It is counted and not stored, and the log
// tells the operator once what to do.
func TestAllowFrom_otherAddress_isRejected(t *testing.T) {
	t.Parallel()
	b, log := setupAllowFrom(t, nil)
	handler := b.server.Handler()
	for range 20 {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			res := postFrom(handler, method, "polite", "198.51.100.1:5")
			if res.Code != http.StatusForbidden || strings.Contains(res.Body.String(), "polite a") {
				t.Fatalf("%s: %d %s", method, res.Code, res.Body)
			}
		}
	}
	if res := postFrom(handler, http.MethodGet, "polite", "192.0.2.9:5"); res.Code != 200 {
		t.Errorf("an allowed sender: %d %s", res.Code, res.Body)
	}
	b.wantCounter(t, 60, "postern_deliveries_total", "source=polite", "result=forbidden")
	b.wantCounter(t, 0, "postern_rejections_total")
	logLines := log.withMessage(t, "deliveries are rejected because their address is not in the source's allow_from; "+
		"behind a proxy, ingest.trusted_proxies must name it")
	if len(logLines) != 1 || logLines[0]["remote"] != "198.51.100.1" || logLines[0]["source"] != "polite" {
		t.Errorf("log lines: %v", logLines)
	}
	// An unread body does not delay the response.
	b.serve(t, shortTimeout)
	a, conn := b.raw(t, "/webhooks/stripe", nil, "Transfer-Encoding: chunked")
	a.wantProblem(t, 403, "forbidden")
	wantClosed(t, conn)
	_, _ = io.WriteString(conn, "5\r\nhello\r\n")
}
