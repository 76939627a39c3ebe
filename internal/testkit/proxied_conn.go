package testkit

import (
	"net"
	"sync"
	"sync/atomic"
)

// proxiedConn is one connection through a FaultProxy.
type proxiedConn struct {
	mu             sync.Mutex
	client, server net.Conn
	closed         bool
	gone           chan struct{}
	// stalled: no byte passes any more.
	stalled atomic.Bool
}

// attach adds the connection to the server. It returns false when the client's connection was reset
// in the meantime.
func (l *proxiedConn) attach(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server = server
	if l.closed {
		_ = server.Close()
	}
	return !l.closed
}

// reset closes both connections once, with RST instead of FIN.
func (l *proxiedConn) reset() {
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
