package runner

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// held is a connection whose writes, once on is set, send their bytes and return only when the test has ended.
type held struct {
	net.Conn
	on    *atomic.Bool
	ended <-chan struct{}
}

func (c held) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.on.Load() {
		<-c.ended
	}
	return n, err
}

// HTTP/2 alone has the gap between the bytes that leave and the call of WroteHeaders: HTTP/1 calls it before they leave.
func TestSend_endsBeforeItsWriteReturns_mayHaveBeenSent(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	var on atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Proto != "HTTP/2.0" {
			t.Errorf("received by %s", r.Proto)
		}
		if on.Load() {
			cancel()
			<-ended
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(ended) })
	client := server.Client()
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return held{conn, &on, ended}, err
	}
	d := &destination{client: client, reach: config.Reach{URL: server.URL, MaxAnswer: 1 << 10}}
	send := func() answer {
		request := rules.Rendered{Method: http.MethodPost, Path: "/", Body: "{}"}
		return d.send(ctx, &call{step: &rules.Step{Timeout: time.Minute}, request: request, facts: &rules.Facts{}})
	}
	if a := send(); a.err != nil || a.status != http.StatusOK {
		t.Fatalf("first request: %+v", a)
	}
	// The transport calls it under the lock of the connection's writes: the next of them is the request's headers.
	hold := func(string, []string) { on.Store(true) }
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaderField: hold})
	if a := send(); a.err == nil || a.unsent {
		t.Errorf("error %v, not sent %t", a.err, a.unsent)
	}
}
