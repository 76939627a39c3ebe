package ingest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestWrongPathOrMethodIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
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
		req, err := http.NewRequestWithContext(t.Context(), tc.method, b.url+tc.path, bytes.NewReader(d.Body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = d.Header.Clone()
		a, err := b.do(req)
		if err != nil {
			t.Fatal(err)
		}
		a.refused(t, tc.status, tc.kind)
		if allow := a.header.Get("Allow"); tc.status == 405 && tc.path != "/readyz" && !strings.Contains(allow, http.MethodPost) {
			t.Errorf("%s %s: Allow %q", tc.method, tc.path, allow)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events`); n != 0 {
		t.Errorf("%d events stored", n)
	}
}

func TestEncodedBodiesAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for n, tc := range []struct {
		encoding []string
		status   int
	}{{[]string{"gzip"}, 415}, {[]string{"br"}, 415}, {[]string{"identity, gzip"}, 415}, {[]string{"identity", "gzip"}, 415},
		{[]string{"identity"}, 200}, {[]string{"Identity"}, 200}, {[]string{""}, 200}} {
		d := b.invoice(t, n+1)
		d.Header["Content-Encoding"] = tc.encoding
		a := b.post(t, "stripe", d)
		if tc.status == 200 {
			a.receipt(t)
			continue
		}
		a.refused(t, tc.status, "encoding")
	}
}

// raw sends bytes as they are, over a connection of their own, and reads the answer.
func (b *testBundle) raw(t *testing.T, head string, body io.Reader) (answer, net.Conn) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if body != nil {
		go func() { _, _ = io.Copy(conn, body) }() // the answer may come before all of it is sent
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	return answer{status: res.StatusCode, header: res.Header, body: text, took: time.Since(began)}, conn
}

// closed fails unless the server has hung up.
func closed(t *testing.T, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection is still open: %d bytes, %v", n, err)
	}
}

func TestBodyOverTheLimitIsRefusedUnread(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	// Not one byte of the body is sent: the answer cannot depend on it.
	a, conn := b.raw(t, "POST /webhooks/stripe HTTP/1.1\nHost: postern\nContent-Length: 10000000000", nil)
	a.refused(t, 413, "too-large")
	closed(t, conn)
	// Nor is a client that asks first told to go on.
	a, conn = b.raw(t, "POST /webhooks/stripe HTTP/1.1\nHost: postern\nExpect: 100-continue\nContent-Length: 1048577", nil)
	a.refused(t, 413, "too-large")
	closed(t, conn)
	if n := b.counter(t, "postern_deliveries_total", "source=stripe", "result=too_large"); n != 2 {
		t.Errorf("%v counted", n)
	}
}

// Senders without keep-alive must get the status, too: a reset may reach them before they have read it.
func TestReject_unreadBodyOfLastRequest_connectionEndsInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, head := range map[string]string{
		"body too large":    "POST /webhooks/stripe HTTP/1.1\nHost: postern\nConnection: close\nContent-Length: 10000000",
		"chunked too large": "POST /webhooks/stripe HTTP/1.1\nHost: postern\nConnection: close\nTransfer-Encoding: chunked",
		"encoding":          "POST /webhooks/stripe HTTP/1.1\nHost: postern\nConnection: close\nContent-Length: 10000000\nContent-Encoding: br",
		"no such source":    "POST /webhooks/none HTTP/1.1\nHost: postern\nConnection: close\nContent-Length: 10000000",
		"no such route":     "POST /none HTTP/1.1\nHost: postern\nConnection: close\nContent-Length: 10000000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part := strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", 1<<16, strings.Repeat("x", 1<<16)), maxBody>>16+1)
			a, conn := b.raw(t, head, strings.NewReader(part))
			if a.status/100 != 4 {
				t.Errorf("status %d, want 4xx", a.status)
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("read after the response: %d bytes, %v; want the end of the stream", n, err)
			}
		})
	}
}

// chunked hides a reader's length, so that the client sends chunks.
type chunked struct{ io.Reader }

func TestChunkedBodies(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	send := func(d *provider.Delivery, body io.Reader) answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/webhooks/stripe", chunked{body})
		if err != nil {
			t.Fatal(err)
		}
		req.Header = d.Header.Clone()
		a, err := b.do(req)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for n, size := range []int{0, 1000, maxBody - 1, maxBody} {
		s := provider.Sample{Body: fmt.Appendf(nil, `{"id":"evt_%d"}`, n)}
		s.Body = append(s.Body, bytes.Repeat([]byte(" "), max(0, size-len(s.Body)))...)
		d := b.sign(t, "stripe", s)
		if r := send(d, bytes.NewReader(d.Body)).receipt(t); r.EventID != fmt.Sprintf("evt_%d", n) {
			t.Errorf("%d bytes: %+v", size, r)
		}
	}
	d := b.sign(t, "stripe", provider.Sample{Body: bytes.Repeat([]byte("x"), maxBody+1)})
	send(d, bytes.NewReader(d.Body)).refused(t, 413, "too-large")
	// One that goes on is cut off at the limit.
	head := "POST /webhooks/stripe HTTP/1.1\nHost: postern\nTransfer-Encoding: chunked"
	chunk := fmt.Sprintf("%x\r\n%s\r\n", maxBody/4, strings.Repeat("x", maxBody/4))
	a, conn := b.raw(t, head, strings.NewReader(strings.Repeat(chunk, 5)))
	a.refused(t, 413, "too-large")
	closed(t, conn)
	if n := b.count(t, `SELECT count(*) FROM events`); n != 4 {
		t.Errorf("%d events, want 4", n)
	}
}

func TestSlowBodyIsCutOff(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.serve(t, shortTimeout)
	for name, head := range map[string]string{
		"counted": "POST /webhooks/stripe HTTP/1.1\nHost: postern\nContent-Length: 100",
		"chunked": "POST /webhooks/stripe HTTP/1.1\nHost: postern\nTransfer-Encoding: chunked",
	} {
		body := "{\"id\""
		if name == "chunked" {
			body = "5\r\n{\"id\"\r\n"
		}
		a, conn := b.raw(t, head, strings.NewReader(body))
		a.refused(t, 408, "body")
		closed(t, conn)
		if a.took > 20*time.Second {
			t.Errorf("%s: after %s", name, a.took)
		}
	}
	// What slow senders held is free again.
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
}

// A client that goes away leaves nothing behind but, perhaps, its event: stored once when it comes again.
func TestClientGone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	release := b.hold(t)
	d := b.invoice(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := b.try(ctx, "stripe", d); gone <- err }()
	b.blocked(t, 1)
	cancel()
	if err := <-gone; err == nil {
		t.Error("an answer came although the store was held")
	}
	release()
	testkit.Eventually(t, 10*time.Second, func() error {
		a, err := b.try(t.Context(), "stripe", d)
		if err != nil || a.status != 200 || !a.receipt(t).Duplicate {
			return fmt.Errorf("%d %s %v", a.status, a.body, err)
		}
		return nil
	})
}

func TestNoAnswerSaysASecret(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	tampered := b.invoice(t, 1)
	tampered.Body = append(tampered.Body, ' ')
	var answers []answer
	for source, d := range map[string]*provider.Delivery{"stripe": tampered, "nobody": tampered, "panic": tampered, "shop": tampered} {
		answers = append(answers, b.post(t, source, d))
	}
	for _, a := range answers {
		for _, secret := range []string{stripeSecret, shopifySecret, "whsec", "goroutine", "SELECT", ".go:", "postern_gateway"} {
			if bytes.Contains(a.body, []byte(secret)) {
				t.Errorf("an answer says %q: %s", secret, a.body)
			}
		}
	}
}
