package testkit

import (
	"net"
	"sync"
	"sync/atomic"
)

// link is one connection through a FaultProxy.
type link struct {
	mu             sync.Mutex
	client, server net.Conn
	closed         bool
	gone           chan struct{}
	// stalled: nothing passes any more.
	stalled atomic.Bool
}

// attach adds the server's end; false: the link was reset meanwhile.
func (l *link) attach(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = server
	if l.closed {
		_ = server.Close()
	}
	return !l.closed
}

// reset closes both ends without the courtesy of a FIN, once.
func (l *link) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.gone)
	for _, conn := range []net.Conn{l.client, l.server} {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		if conn != nil {
			_ = conn.Close()
		}
	}
}
