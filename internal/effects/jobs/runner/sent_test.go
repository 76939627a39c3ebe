package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
)

// heldWrites is a connection whose writes send their bytes. While on is set, they return only when
// the connection is closed or the test has ended. left is called after the bytes have left.
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

// A call that ends while its first bytes leave may have been sent. HTTP/2 calls WroteHeaders, and
// HTTP/1 calls WroteHeaderField after a long request line, only when bytes have left.
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
			d := &destination{client: client, config: config.ResolvedDestination{URL: server.URL, MaxResponse: 1 << 10}}
			send := func() response {
				request := rules.RenderedRequest{Method: http.MethodPost, Path: tc.path, Body: "{}"}
				return d.send(ctx, &call{step: &rules.Step{Timeout: time.Minute}, request: request,
					data: &rules.TemplateData{}})
			}
			if a := send(); a.err != nil || a.status != http.StatusOK {
				t.Fatalf("first request: %+v", a)
			}
			// The next write of the connection is then one of the request. HTTP/2, which writes
			// more than requests, calls WroteHeaderField under the lock of the connection's writes.
			hold := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { on.Store(true) }}
			if tc.http2 {
				hold = &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { on.Store(true) }}
			}
			ctx = httptrace.WithClientTrace(ctx, hold)
			if a := send(); a.err == nil || a.notSent {
				t.Errorf("error %v, not sent %t", a.err, a.notSent)
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
		d := &destination{client: client, config: config.ResolvedDestination{URL: "http://127.0.0.1:1",
			MaxResponse: 1 << 10}}
		request := rules.RenderedRequest{Method: http.MethodPost, Path: path, Body: "{}"}
		a := d.send(ctx, &call{step: &rules.Step{Timeout: time.Minute}, request: request, data: &rules.TemplateData{}})
		if a.err == nil || !a.notSent {
			t.Errorf("%.10s: error %v, not sent %t", path, a.err, a.notSent)
		}
		cancel()
	}
}

// newResolver returns a resolver that resolves names to addresses, in the given order.
func newResolver(t *testing.T, all map[string][][4]byte) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	testkit.Must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { server.Close(); <-done })
	go func() {
		defer close(done)
		question := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(question)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(question[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, a := range all[q.Name.String()] {
					m.Answers = append(m.Answers,
						dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type,
							Class: q.Class}, Body: &dnsmessage.AResource{A: a}})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// Each allowed address of a name is tried. The error says that an address is not allowed only if
// none is, and not if an allowed one does not respond.
func TestDialFunc_nameWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	testkit.Must(t, err)
	open, away, closed, other := [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 3}, [4]byte{127, 0, 0, 2},
		[4]byte{127, 0, 0, 4}
	resolver := newResolver(t, map[string][][4]byte{"up.example.": {closed, open}, "down.example.": {closed, away},
		"gone.example.": {away, closed}, "closed.example.": {closed, other}})
	dial := dialFunc(net.Dialer{Resolver: resolver},
		requirePublic([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(open), 32),
			netip.PrefixFrom(netip.AddrFrom4(away), 32)}))
	for name, want := range map[string]struct{ connects, guarded bool }{"up.example": {true, false},
		"down.example": {false, false}, "gone.example": {false, false}, "closed.example": {false, true}} {
		conn, err := dial(t.Context(), "tcp", net.JoinHostPort(name, port))
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want.connects || errors.Is(err, errAddressNotAllowed) != want.guarded {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Addresses of this machine, of private networks and of metadata services are rejected in every
// notation, and accepted if the destination allows them.
func TestRequirePublic_addresses(t *testing.T) {
	t.Parallel()
	for address, may := range map[string]bool{
		"8.8.8.8": true, "93.184.216.34": true, "2606:4700:4700::1111": true, "172.32.0.1": true,
		"::ffff:8.8.8.8": true,
		"127.0.0.1":      false, "127.8.8.8": false, "::1": false, "0.0.0.0": false, "::": false, "10.0.0.1": false,
		"172.16.0.1": false, "192.168.1.1": false, "fd00::1": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false,
		"168.63.129.16": false, "100.100.100.200": false, "224.0.0.1": false, "255.255.255.255": false,
		"ff02::1":         false,
		"::ffff:10.0.0.1": false, "::ffff:127.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false,
		"::a00:1": false, "192.0.2.1": false,
	} {
		err := requirePublic(nil)("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(), nil)
		if may != (err == nil) || !may && !errors.Is(err, errAddressNotAllowed) {
			t.Errorf("%s: %v, want allowed: %t", address, err, may)
		}
		all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		if err := requirePublic(all)("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(),
			nil); err != nil {
			t.Errorf("%s is allowed, and rejected: %v", address, err)
		}
	}
}

// A name that resolves to this machine is rejected before anything is sent. A redirect is reported
// and not followed.
func TestNewClient_privateNamesAndRedirects_areNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	byName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	get := func(allow ...netip.Prefix) (status int, err error) {
		client := newClient(allow, 1)
		defer client.CloseIdleConnections()
		res, err := client.Get(byName)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	if err := requirePublic([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})("tcp", "[::ffff:10.0.0.1]:443",
		nil); err != nil {
		t.Errorf("an allowed address, written as IPv6: %v", err)
	}
	if _, err := get(netip.MustParsePrefix("10.0.0.0/8")); !errors.Is(err, errAddressNotAllowed) || asked.Load() != 0 {
		t.Errorf("%d requests: %v", asked.Load(), err)
	}
	status, err := get(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	if got := fmt.Sprintf("%d after %d requests, %v", status, asked.Load(), err); got != "302 after 1 requests, <nil>" {
		t.Error(got)
	}
}
