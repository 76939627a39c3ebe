package runner

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// heldWrites is a connection whose writes, once on is set, send their bytes and return only when it
// is closed or the test has ended. left is called after the bytes have left.
type heldWrites struct {
	net.Conn
	on     *atomic.Bool
	left   func()
	closed context.Context
	ended  <-chan struct{}
	end    func()
}

func (c heldWrites) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.on.Load() {
		c.left()
		select {
		case <-c.closed.Done():
		case <-c.ended:
		}
	}
	return n, err
}

func (c heldWrites) Close() error {
	c.end()
	return c.Conn.Close()
}

// Where HTTP/2 calls WroteHeaders, and HTTP/1 WroteHeaderField after a long request line, bytes have left.
func TestSend_endsBeforeItsWriteReturns_mayHaveBeenSent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		http2 bool
		path  string
	}{
		"HTTP/1.1":                       {false, "/"},
		"HTTP/1.1, a long request line":  {false, "/" + strings.Repeat("x", 3<<10)},
		"HTTP/1.1, longer than a buffer": {false, "/" + strings.Repeat("x", 10<<10)},
		"HTTP/2":                         {true, "/"},
		"HTTP/2, a long path":            {true, "/" + strings.Repeat("x", 10<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			var on atomic.Bool
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			want := map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[tc.http2]
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Proto != want {
					t.Errorf("received by %s", r.Proto)
				}
				if on.Load() {
					<-ended
				}
			}))
			server.EnableHTTP2 = tc.http2
			server.StartTLS()
			t.Cleanup(server.Close)
			t.Cleanup(sync.OnceFunc(func() { close(ended) }))
			client := server.Client()
			dial := func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				closed, end := context.WithCancel(context.Background())
				return heldWrites{conn, &on, cancel, closed, ended, end}, err
			}
			client.Transport.(*http.Transport).DialContext = dial
			d := &destination{client: client, reach: config.Reach{URL: server.URL, MaxAnswer: 1 << 10}}
			send := func() answer {
				request := rules.Rendered{Method: http.MethodPost, Path: tc.path, Body: "{}"}
				return d.send(ctx, &call{step: &rules.Step{Timeout: time.Minute}, request: request, facts: &rules.Facts{}})
			}
			if a := send(); a.err != nil || a.status != http.StatusOK {
				t.Fatalf("first request: %+v", a)
			}
			// The next write of the connection is then one of the request. HTTP/2, which writes more
			// than requests, calls WroteHeaderField under the lock of the connection's writes.
			hold := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { on.Store(true) }}
			if tc.http2 {
				hold = &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { on.Store(true) }}
			}
			ctx = httptrace.WithClientTrace(ctx, hold)
			if a := send(); a.err == nil || a.unsent {
				t.Errorf("error %v, not sent %t", a.err, a.unsent)
			}
		})
	}
}

// A request that never gets a connection was not sent, however long its address is.
func TestSend_endsWithoutConnection_wasNotSent(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/" + strings.Repeat("x", 10<<10)} {
		ctx, cancel := context.WithCancel(t.Context())
		dial := func(context.Context, string, string) (net.Conn, error) {
			cancel()
			return nil, net.ErrClosed
		}
		client := &http.Client{Transport: &http.Transport{DialContext: dial}}
		d := &destination{client: client, reach: config.Reach{URL: "http://127.0.0.1:1", MaxAnswer: 1 << 10}}
		request := rules.Rendered{Method: http.MethodPost, Path: path, Body: "{}"}
		a := d.send(ctx, &call{step: &rules.Step{Timeout: time.Minute}, request: request, facts: &rules.Facts{}})
		if a.err == nil || !a.unsent {
			t.Errorf("%.10s: error %v, not sent %t", path, a.err, a.unsent)
		}
		cancel()
	}
}
