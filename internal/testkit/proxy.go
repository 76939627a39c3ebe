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

// FaultProxy is a link between a client and a server that fails on command.
type FaultProxy struct {
	// Addr is where clients connect, on loopback.
	Addr string
	// URL is the target's URL by way of the proxy, "" where the target was an address.
	URL string

	network, target string
	listener        net.Listener
	goroutines      sync.WaitGroup

	mu      sync.Mutex
	links   map[*link]struct{}
	fault   fault
	changed chan struct{} // closed when fault is replaced
}

// fault is what the proxy does to bytes; the zero value lets them pass.
type fault struct {
	cut, stall bool
	// silent: nothing comes back, while all goes through.
	silent bool
	delay  time.Duration
	// piece is the most bytes that pass between two delays; 0: all that there are.
	piece int
}

// Proxy starts a proxy before a target: a postgres or nats URL, host:port, or the path of a socket. It ends with the test.
func Proxy(t testing.TB, target string) *FaultProxy {
	t.Helper()
	p, err := NewProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy is Proxy outside a test; whoever starts it closes it.
func NewProxy(target string) (*FaultProxy, error) {
	p := &FaultProxy{links: map[*link]struct{}{}, changed: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for fault proxy: %w", err)
	}
	p.listener, p.Addr = l, l.Addr().String()
	if err := p.aim(target); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	p.goroutines.Go(p.accept)
	return p, nil
}

// Close ends the proxy and its connections, and waits for what served them.
func (p *FaultProxy) Close() {
	_ = p.listener.Close()
	p.Cut()
	p.goroutines.Wait()
}

// aim reads the target and makes the URL that leads to it through the proxy.
func (p *FaultProxy) aim(target string) error {
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

// Cut resets every connection and each new one, like a server that died.
func (p *FaultProxy) Cut() { p.set(fault{cut: true}) }

// Stall keeps connections, accepts new ones and lets no byte pass in either direction, like a server that hangs.
func (p *FaultProxy) Stall() { p.set(fault{stall: true}) }

// StallAnswers keeps connections, accepts new ones and lets no byte come back from the target, which gets all that is sent to it.
func (p *FaultProxy) StallAnswers() { p.set(fault{silent: true}) }

// StallLinks lets no byte pass any more over the connections that there are, and keeps them, whatever comes later; new ones work.
func (p *FaultProxy) StallLinks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.stalled.Store(true)
	}
}

// Delay holds every piece of data back for d, in each direction.
func (p *FaultProxy) Delay(d time.Duration) { p.set(fault{delay: d}) }

// Trickle lets so many bytes pass every d, in each direction, like a line that hardly carries anything.
func (p *FaultProxy) Trickle(bytes int, d time.Duration) { p.set(fault{delay: d, piece: bytes}) }

// Restore ends the fault; what was stalled goes on its way.
func (p *FaultProxy) Restore() { p.set(fault{}) }

func (p *FaultProxy) set(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
	close(p.changed)
	p.changed = make(chan struct{})
	if f.cut {
		for l := range p.links {
			l.reset()
		}
	}
}

func (p *FaultProxy) now() (fault, <-chan struct{}) {
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
	l := &link{client: client, gone: make(chan struct{})}
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
	both.Go(func() { p.pass(l, server, client, false) })
	both.Go(func() { p.pass(l, client, server, true) })
	both.Wait()
}

func (p *FaultProxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	return !p.fault.cut
}

func (p *FaultProxy) remove(l *link) {
	l.reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pass copies one direction, back is that of the answers, until an end closes, then resets the link: half-open connections are no fault of ours.
func (p *FaultProxy) pass(l *link, to io.Writer, from io.Reader, back bool) {
	defer l.reset()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !p.send(l, to, buf[:n], back) || err != nil {
			return
		}
	}
}

// send writes data in the pieces and at the times that the fault wants; false: the link is gone.
func (p *FaultProxy) send(l *link, to io.Writer, data []byte, back bool) bool {
	for len(data) > 0 {
		if !p.hold(l, back) {
			return false
		}
		f, _ := p.now()
		piece := data
		if f.piece > 0 {
			piece = data[:min(f.piece, len(data))]
		}
		if _, err := to.Write(piece); err != nil {
			return false
		}
		data = data[len(piece):]
	}
	return true
}

// hold waits for as long as the fault demands; false: the link is gone.
func (p *FaultProxy) hold(l *link, back bool) bool {
	for {
		if l.stalled.Load() {
			<-l.gone
			return false
		}
		f, changed := p.now()
		var ready <-chan time.Time
		if !f.stall && !(f.silent && back) {
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
