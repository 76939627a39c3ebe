package testkit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// FaultProxy forwards connections from clients to a server and fails on command.
type FaultProxy struct {
	// Addr is the loopback address that clients connect to.
	Addr string
	// URL is the URL of the target through the proxy. It is empty when the target was an address.
	URL string

	network, target string
	listener        net.Listener
	goroutines      sync.WaitGroup

	mu          sync.Mutex
	connections map[*proxiedConn]struct{}
	fault       fault
	changed     chan struct{} // closed when fault is replaced
}

// fault describes how the proxy treats data. The zero value forwards it.
type fault struct {
	cut, stall bool
	// stallResponses: data from the server is held back, data from the client passes.
	stallResponses bool
	delay          time.Duration
	// maxBytes limits the bytes that pass between two delays. Zero means no limit.
	maxBytes int
}

// Proxy starts a proxy for a target: a postgres or nats URL, host:port, or the path of a socket. It
// stops with the test.
func Proxy(t testing.TB, target string) *FaultProxy {
	t.Helper()
	p, err := NewProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy outside a test. The caller closes it.
func NewProxy(target string) (*FaultProxy, error) {
	p := &FaultProxy{connections: map[*proxiedConn]struct{}{}, changed: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for fault proxy: %w", err)
	}
	p.listener, p.Addr = l, l.Addr().String()
	if err := p.setTarget(target); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p.goroutines.Go(p.accept)
	return p, nil
}

// Close stops the proxy, resets its connections and waits for its goroutines.
func (p *FaultProxy) Close() {
	_ = p.listener.Close()
	p.Cut()
	p.goroutines.Wait()
}

// setTarget parses the target and builds the URL that leads to it through the proxy.
func (p *FaultProxy) setTarget(target string) error {
	if !strings.Contains(target, "://") {
		p.network, p.target = network(target), target
		return nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return fmt.Errorf("read target of fault proxy: %w", err)
	}
	p.network, p.target = "tcp", u.Host
	q := u.Query()
	if dir := q.Get("host"); strings.HasPrefix(dir, "/") {
		p.network, p.target = "unix", filepath.Join(dir, ".s.PGSQL.5432")
		q.Del("host")
		q.Del("port")
		u.RawQuery = q.Encode()
	}
	u.Host = p.Addr
	p.URL = u.String()
	return nil
}

func network(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}

// Cut resets all connections and every new one, as a dead server does.
func (p *FaultProxy) Cut() { p.set(fault{cut: true}) }

// Stall keeps connections and accepts new ones, but forwards no byte in either direction, as a
// hanging server does.
func (p *FaultProxy) Stall() { p.set(fault{stall: true}) }

// StallResponses keeps connections and accepts new ones. The target receives all data, but no byte
// comes back.
func (p *FaultProxy) StallResponses() { p.set(fault{stallResponses: true}) }

// StallOpenConnections forwards no byte over the connections that are open now, even after Restore.
// New connections work.
func (p *FaultProxy) StallOpenConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.connections {
		l.stalled.Store(true)
	}
}

// Delay delays each piece of data by d, in both directions.
func (p *FaultProxy) Delay(d time.Duration) { p.set(fault{delay: d}) }

// Trickle forwards the given number of bytes every d, in both directions, as a very slow network
// does.
func (p *FaultProxy) Trickle(bytes int, d time.Duration) { p.set(fault{delay: d, maxBytes: bytes}) }

// Restore ends the fault. Stalled data is forwarded.
func (p *FaultProxy) Restore() { p.set(fault{}) }

func (p *FaultProxy) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	close(p.changed)
	p.changed = make(chan struct{})
	if f.cut {
		for l := range p.connections {
			l.reset()
		}
	}
}

func (p *FaultProxy) currentFault() (fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault, p.changed
}

func (p *FaultProxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		p.goroutines.Go(func() { p.serve(conn) })
	}
}

func (p *FaultProxy) serve(client net.Conn) {
	l := &proxiedConn{client: client, gone: make(chan struct{})}
	if !p.add(l) {
		l.reset()
		return
	}
	defer p.remove(l)
	server, err := net.Dial(p.network, p.target)
	if err != nil || !l.attach(server) {
		l.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.copyData(l, server, client, false) })
	both.Go(func() { p.copyData(l, client, server, true) })
	both.Wait()
}

func (p *FaultProxy) add(l *proxiedConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connections[l] = struct{}{}
	return !p.fault.cut
}

func (p *FaultProxy) remove(l *proxiedConn) {
	l.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, l)
}

// copyData copies one direction until an end closes, then resets the connection, because half-open
// connections are not one of our faults. The direction from the server to the client has back set.
func (p *FaultProxy) copyData(l *proxiedConn, to io.Writer, from io.Reader, back bool) {
	defer l.reset()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.send(l, to, buf[:n], back) || err != nil {
			return
		}
	}
}

// send writes data in the pieces and at the times that the fault demands. It returns false when the
// connection is gone.
func (p *FaultProxy) send(l *proxiedConn, to io.Writer, data []byte, back bool) bool {
	for len(data) > 0 {
		if !p.waitForFault(l, back) {
			return false
		}
		f, _ := p.currentFault()
		chunk := data
		if f.maxBytes > 0 {
			chunk = data[:min(f.maxBytes, len(data))]
		}
		if _, err := to.Write(chunk); err != nil {
			return false
		}
		data = data[len(chunk):]
	}
	return true
}

// waitForFault waits as long as the fault demands. It returns false when the connection is gone.
func (p *FaultProxy) waitForFault(l *proxiedConn, back bool) bool {
	for {
		if l.stalled.Load() {
			<-l.gone
			return false
		}
		f, changed := p.currentFault()
		var ready <-chan time.Time
		if !f.stall && !(f.stallResponses && back) {
			if f.delay == 0 {
				return true
			}
			timer := time.NewTimer(f.delay)
			defer timer.Stop()
			ready = timer.C
		}
		select {
		case <-ready:
			return true
		case <-changed:
		case <-l.gone:
			return false
		}
	}
}
