package app_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

var abusers = flag.Int("abuse.connections", 200, "how many connections of slow senders the test opens")

// startWithShortTimeouts starts a gateway with short timeouts.
func startWithShortTimeouts(t *testing.T, edit func(*config.Config)) *testBundle {
	t.Helper()
	b := configured(t, func(c *config.Config) {
		c.Ingest.HeaderTimeout, c.Ingest.ReadTimeout, c.Ingest.IdleTimeout = 5*time.Second, 8*time.Second, 5*time.Second
		if edit != nil {
			edit(c)
		}
	})
	b.app = b.start(t, app.Options{Gateway: true})
	return b
}

// dial opens a connection to the gateway that ends with the test.
func (b *testBundle) dial(t *testing.T) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", b.app.Addr())
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testkit.Must(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	return conn.(*net.TCPConn)
}

// connections returns how many connections are open, and how many have ended by outcome.
func (b *testBundle) connections(t *testing.T) map[string]int {
	t.Helper()
	families := scrape(t, b.app)
	out := map[string]int{"open": int(families["postern_connections_open"].GetMetric()[0].GetGauge().GetValue())}
	for _, m := range families["postern_connections_total"].GetMetric() {
		out[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
	}
	return out
}

// inMemory returns the bytes in use on the heap.
func inMemory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// The first bytes of slow senders by kind. All continue with a byte at an interval.
var slow = []string{
	"",
	"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nX-Slow: ",
	"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nContent-Length: 4000000\r\n\r\n{",
	"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nTransfer-Encoding: chunked\r\n\r\n3d0900\r\n{",
}

// Many connections with slow headers and bodies use little memory, are closed in time, and block no
// other sender. They would use up the quota of a source if each reserved memory for a normal body.
// Not parallel, because it measures the process.
func TestGateway_manySlowConnections_useLittleMemoryAndBlockNoSender(t *testing.T) {
	room := max(settings.Bytes(*abusers)*(16<<10), 1<<20)
	b := startWithShortTimeouts(t, func(c *config.Config) { c.Ingest.MaxBodyBytes, c.Ingest.QueueBytes = room/4, room })
	for _, s := range b.cfg.Sources {
		s.MaxBodyBytes = room / 4
	}
	b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
	goroutines, memory := runtime.NumGoroutine(), inMemory()
	var conns []net.Conn
	for n := range *abusers {
		conn := b.dial(t)
		if _, err := io.WriteString(conn, slow[n%len(slow)]); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	stop, dripping := make(chan struct{}), sync.WaitGroup{}
	dripping.Go(func() { drip(conns, stop) })
	began := time.Now()
	held := func() int64 { return inMemory() - memory }
	most, served := int64(0), 0
	testkit.Eventually(t, 2*time.Minute, func() error { // the gateway closes them after header_timeout or read_timeout
		served++
		b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1+served, time.Now()))
		most = max(most, held())
		// one of the open connections may be a slow one
		if c := b.connections(t); c["open"] > 2 || c["served"]+c["silent"]+c["unread"] < len(conns) {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
	close(stop)
	dripping.Wait()
	after := b.connections(t)
	t.Logf("%d slow connections took at most %d KiB, ended after %s, and %d deliveries were taken meanwhile: %v",
		len(conns), most>>10, time.Since(began).Round(time.Second), served, after)
	if each := most / int64(len(conns)); each > 80<<10 {
		t.Errorf("a slow connection takes %d KiB", each>>10)
	}
	// a byte may have arrived before the silent ones were closed
	for result, want := range map[string]int{"unread": len(conns) / 4, "served": len(conns) / 2} {
		if after[result] < want {
			t.Errorf("%d connections %s, want at least %d: %v", after[result], result, want, after)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	testkit.Eventually(t, time.Minute, func() error {
		if n, m := runtime.NumGoroutine(), held(); n > goroutines+5 || m > max(memory/2, 8<<20) {
			return fmt.Errorf("%d goroutines and %d KiB more stay", n-goroutines, m>>10)
		}
		return nil
	})
}

// drip sends each connection a byte at an interval.
func drip(conns []net.Conn, stop <-chan struct{}) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for n, conn := range conns {
			if n%len(slow) != 0 {
				_, _ = io.WriteString(conn, "x") // the connection may be closed
			}
		}
	}
}

// endless reads a text again and again.
type endless string

func (e endless) Read(b []byte) (n int, err error) {
	for n+len(e) <= len(b) {
		n += copy(b[n:], e)
	}
	return n, nil
}

// badRequest is an invalid request with the allowed statuses; 0 means no response.
type badRequest struct {
	name, head string
	more       io.Reader
	close      bool // closes the sending half after everything is sent
	want       []int
}

func badRequests() []badRequest {
	post := "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\n"
	chunked := post + "Transfer-Encoding: chunked\r\n\r\n"
	return []badRequest{
		{name: "endless chunks", head: chunked, more: endless("400\r\n" + strings.Repeat("x", 1024) + "\r\n"),
			want: []int{413}},
		{name: "endless chunks of a byte", head: chunked, more: endless("1\r\nx\r\n"), want: []int{413, 408}},
		{name: "endless extension of a chunk", head: chunked + "1;x=", more: endless("x"), want: []int{408}},
		{name: "endless trailer", head: chunked + "0\r\nX: ", more: endless("x"), want: []int{408}},
		{name: "endless header", head: post + "X: ", more: endless("x"), want: []int{431}},
		{name: "endless headers", head: post, more: endless("X: y\r\n"), want: []int{431}},
		{name: "endless line", head: "POST /", more: endless("x"), want: []int{431, 400}},
		{name: "no HTTP at all", more: endless("\x00\xff"), want: []int{431, 400}},
		{name: "TLS without TLS", head: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", want: []int{400, 0}},
		{name: "HTTP/2 without TLS", head: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", want: []int{505, 404, 0}},
		{name: "HTTP of another time", head: "POST /webhooks/stripe HTTP/7.3\r\nHost: postern\r\n\r\n",
			want: []int{505, 400}},
		{name: "no host", head: "POST /webhooks/stripe HTTP/1.1\r\n\r\n", want: []int{400}},
		{name: "two lengths", head: post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", want: []int{400}},
		{name: "a negative length", head: post + "Content-Length: -1\r\n\r\n", want: []int{400}},
		{name: "a length beyond numbers", head: post + "Content-Length: 99999999999999999999\r\n\r\n",
			want: []int{400}},
		{name: "a space before the colon", head: post + "Content-Length : 3\r\n\r\nabc", want: []int{400}},
		{name: "chunked of another kind", head: post + "Transfer-Encoding: gzip, chunked\r\n\r\n",
			want: []int{501, 400}},
		{name: "half a body, half closed", head: post + "Content-Length: 100\r\n\r\n{", close: true, want: []int{408}},
		{name: "nothing", want: []int{0}},
		{name: "half a head", head: "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nContent-", want: []int{0, 400}},
		{name: "half a body", head: post + "Content-Length: 100\r\n\r\n{\"id\"", want: []int{408}},
		{name: "half a chunk", head: chunked + "50\r\n{\"id\"", want: []int{408}},
		{name: "half a chunk, half closed", head: chunked + "5\r\nab", close: true, want: []int{408}},
		{name: "a gzip bomb", head: post + "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
			more: endless("400\r\n" + strings.Repeat("\x00", 1024) + "\r\n"), want: []int{415}},
		{name: "an expectation", head: post + "Expect: the impossible\r\nContent-Length: 3\r\n\r\n", want: []int{417}},
		{name: "asks first, at no source", head: "POST /webhooks/nobody HTTP/1.1\r\nHost: postern\r\nExpect: " +
			"100-continue\r\nContent-Length: 3\r\n\r\n", want: []int{404}},
		{name: "a path above", head: "POST /webhooks/../webhooks/stripe HTTP/1.1\r\nHost: postern\r\n\r\n",
			want: []int{404}},
		{name: "a path above, hidden", head: "POST /webhooks/%2e%2e/readyz HTTP/1.1\r\nHost: postern\r\n\r\n",
			want: []int{404}},
		{name: "doubled slashes", head: "POST //webhooks//stripe HTTP/1.1\r\nHost: postern\r\n\r\n", want: []int{404}},
		{name: "a slash in a name", head: "POST /webhooks/stripe%2f HTTP/1.1\r\nHost: postern\r\n\r\n",
			want: []int{404}},
		{name: "capitals", head: "POST /WEBHOOKS/stripe HTTP/1.1\r\nHost: postern\r\n\r\n", want: []int{404}},
		{name: "NUL in a name", head: "POST /webhooks/stripe%00 HTTP/1.1\r\nHost: postern\r\n\r\n", want: []int{404}},
		{name: "a broken escape", head: "POST /webhooks/%zz HTTP/1.1\r\nHost: postern\r\n\r\n", want: []int{400}},
		{name: "the admin's interface", head: "GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:8081\r\n\r\n",
			want: []int{404}},
		{name: "a proxy", head: "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n", want: []int{404, 405}},
		{name: "another protocol", head: "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nConnection: " +
			"Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n", want: []int{401}},
	}
}

// Every invalid request ends soon with an error or without a response. Nothing of it is stored, and
// it causes no internal error.
func TestGateway_invalidRequests_endSoonAndStoreNothing(t *testing.T) {
	t.Parallel()
	b := startWithShortTimeouts(t, func(c *config.Config) { c.Sources["stripe"].MaxBodyBytes = 64 << 10 })
	before := b.connections(t)
	var group sync.WaitGroup
	for _, r := range badRequests() {
		conn := b.dial(t)
		group.Go(func() {
			if err := r.send(conn); err != nil {
				t.Errorf("%s: %v", r.name, err)
			}
		})
	}
	group.Wait()
	families := scrape(t, b.app)
	for _, m := range families["postern_deliveries_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == "accepted" && m.GetCounter().GetValue() != 0 || l.GetValue() == "panic" {
				t.Errorf("counted: %v", m)
			}
		}
	}
	if n := families["postern_panics_total"].GetMetric()[0].GetCounter().GetValue(); n != 0 {
		t.Errorf("%v faults", n)
	}
	testkit.Eventually(t, time.Minute, func() error {
		after := b.connections(t)
		if after["open"] > before["open"] || after["unread"] < 12 || after["served"] < 12 {
			return fmt.Errorf("%v, before %v", after, before)
		}
		return nil
	})
	b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
}

// send sends as much as possible. It fails unless the expected response follows and then the end of
// the connection.
func (r badRequest) send(conn *net.TCPConn) error {
	defer conn.Close()
	if _, err := io.WriteString(conn, r.head); err != nil {
		return err
	}
	if r.close {
		if err := conn.CloseWrite(); err != nil {
			return err
		}
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if r.more != nil {
			_, _ = io.Copy(onlyWriter{conn}, r.more) // until the gateway closes the connection
		}
	}()
	status := 0
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err == nil {
		status = res.StatusCode
		_, err = io.Copy(io.Discard, res.Body)
	}
	if r.more != nil { // limits the read
		<-sent
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("the connection is not closed")
	}
	for _, want := range r.want {
		if status == want {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("status %d, want one of %v", status, r.want), err)
}

// onlyWriter hides the faster interfaces that io.Copy would use.
type onlyWriter struct{ io.Writer }

// Pipelined requests on one connection get their responses in order, and the valid ones are
// accepted.
func TestGateway_pipelinedRequests_respondsInOrder(t *testing.T) {
	t.Parallel()
	b := startWithShortTimeouts(t, nil)
	const requests = 300
	var sent bytes.Buffer
	for n := range requests {
		d := b.sign(t, "stripe", "invoice.paid", 1+n/3, time.Now())
		if n%3 == 1 {
			d = &provider.Delivery{Header: http.Header{}, Body: []byte("forged")}
		}
		source := "stripe"
		if n%3 == 2 {
			source = "nobody"
		}
		req, err := http.NewRequest(http.MethodPost, "http://postern/webhooks/"+source, bytes.NewReader(d.Body))
		testkit.Must(t, err)
		if req.Header = d.Header.Clone(); req.Write(&sent) != nil {
			t.Fatal(err)
		}
	}
	conn := b.dial(t)
	wrote := make(chan error, 1)
	go func() { _, err := conn.Write(sent.Bytes()); wrote <- err }()
	in := bufio.NewReader(conn)
	for n := range requests {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("response %d: %v", n, err)
		}
		if want := []int{200, 401, 404}[n%3]; res.StatusCode != want {
			t.Errorf("response %d: status %d, want %d", n, res.StatusCode, want)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(conn, "nonsense\r\n\r\n"); err != nil {
		t.Error(err)
	}
	var served *dto.Metric
	testkit.Eventually(t, time.Minute, func() error {
		for _, m := range scrape(t, b.app)["postern_deliveries_total"].GetMetric() {
			if m.GetLabel()[0].GetValue() == "accepted" && m.GetLabel()[1].GetValue() == "stripe" {
				served = m
			}
		}
		if served.GetCounter().GetValue() != requests/3 {
			return fmt.Errorf("accepted: %v", served)
		}
		return nil
	})
}

// Cancelled HTTP/2 requests, and more requests than a connection may have, affect only that
// connection.
func TestGateway_rapidResets_affectOnlyTheirConnection(t *testing.T) {
	t.Parallel()
	ca, trust := newAuthority(t), x509.NewCertPool()
	ca.server(t)
	trust.AddCert(ca.cert)
	b := startWithShortTimeouts(t, func(c *config.Config) {
		c.Ingest.TLS = config.ServerTLS{Cert: ca.file("server.crt"), Key: ca.file("server.key")}
	})
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: trust}}
	t.Cleanup(transport.CloseIdleConnections)
	deliver := func(n int) {
		t.Helper()
		d := b.sign(t, "stripe", "invoice.paid", n, time.Now())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.app.Addr()+"/webhooks/stripe",
			bytes.NewReader(d.Body))
		testkit.Must(t, err)
		req.Header = d.Header.Clone()
		res, err := transport.RoundTrip(req)
		testkit.Must(t, err)
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); res.StatusCode != 200 || res.ProtoMajor != 2 || err != nil {
			t.Fatalf("%s %d %s, %v", res.Proto, res.StatusCode, body, err)
		}
	}
	deliver(1)
	for _, reset := range []bool{true, false} {
		conn, err := tls.Dial("tcp", b.app.Addr(), &tls.Config{RootCAs: trust, NextProtos: []string{"h2"}})
		testkit.Must(t, err)
		streams, refused, err := flood(conn, reset)
		t.Logf("reset %t: %d streams started, %d rejected, then %v", reset, streams, refused, err)
		if !reset && refused < streams-200 {
			t.Errorf("%d of %d concurrent streams were rejected", refused, streams)
		}
		deliver(2)
		_ = conn.Close() // the gateway may have closed the connection
	}
	testkit.Eventually(t, time.Minute, func() error {
		if c := b.connections(t); c["open"] != 1 || c["served"] < 2 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
}

// flood starts incomplete requests and optionally cancels each. It returns how many it started
// until the server closed the connection, and how many of them were rejected.
func flood(conn net.Conn, reset bool) (streams, refused int, err error) {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return 0, 0, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	framer := http2.NewFramer(conn, conn)
	ended := make(chan int, 1)
	const last = 2001
	go func() {
		n := 0
		defer func() { ended <- n }()
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := f.(*http2.RSTStreamFrame); ok {
				n++
			}
			if f, ok := f.(*http2.PingFrame); ok && f.IsAck() {
				return
			}
		}
	}()
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "postern"}, {Name: ":path", Value: "/webhooks/stripe"}} {
		if err := encoder.WriteField(f); err != nil {
			return 0, 0, err
		}
	}
	err = framer.WriteSettings()
	for id := uint32(1); id < 2*last && err == nil; id += 2 {
		if err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(),
			EndHeaders: true}); err == nil && reset {
			err = framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		streams++
	}
	if err == nil {
		err = framer.WritePing(false, [8]byte{1})
	}
	return streams, <-ended, err
}
