package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// ErrConnectionsClosed is the error of a new connection after Connections.CloseAll.
var ErrConnectionsClosed = errors.New("the connections to PostgreSQL are closed")

// Connections is the group of all connections of a process's pools. The process can close them: a
// commit has no deadline and would otherwise wait as long as PostgreSQL is stalled. The zero value
// is an empty group.
type Connections struct {
	mu     sync.Mutex
	closed bool
	open   map[*trackedConn]struct{}
}

// CloseAll closes every connection and prevents new ones. Open calls return an error for which
// IsUnavailable is true; their statements may have been executed nevertheless.
func (l *Connections) CloseAll() {
	l.mu.Lock()
	l.closed = true
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for one := range open {
		_ = one.Conn.Close() // the embedded Conn, because Close of trackedConn locks l
	}
}

// CloseSilent closes the connections with an open call that have had no traffic for the given time,
// and returns their number. This includes calls that PostgreSQL is still executing. They end as
// after CloseAll.
func (l *Connections) CloseSilent(after time.Duration) (cut int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.open {
		if one.isSilentFor(after) {
			_ = one.Conn.Close()
			delete(l.open, one)
			cut++
		}
	}
	return cut
}

// dial opens a connection to a server. l may be nil; then the connection is not tracked.
func (l *Connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialer().DialContext(ctx, network, address)
	if err != nil || l == nil {
		return conn, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.Join(ErrConnectionsClosed, conn.Close())
	}
	if l.open == nil {
		l.open = map[*trackedConn]struct{}{}
	}
	one := &trackedConn{Conn: conn, group: l}
	l.open[one] = struct{}{}
	return one, nil
}

// trackedConn is a connection of a group.
type trackedConn struct {
	net.Conn
	group *Connections

	mu sync.Mutex
	// pendingCalls is the number of open reads and writes. lastActivity is when the last of them
	// began or ended.
	pendingCalls int
	lastActivity time.Time
}

// Read implements net.Conn.
func (c *trackedConn) Read(b []byte) (int, error) {
	c.recordActivity(1)
	defer c.recordActivity(-1)
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *trackedConn) Write(b []byte) (int, error) {
	c.recordActivity(1)
	defer c.recordActivity(-1)
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.group.mu.Lock()
	delete(c.group.open, c)
	c.group.mu.Unlock()
	return c.Conn.Close()
}

// recordActivity records the start (1) or end (-1) of a read or write.
func (c *trackedConn) recordActivity(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pendingCalls += by
	c.lastActivity = time.Now()
}

// isSilentFor reports whether a call has been open for that long without traffic.
func (c *trackedConn) isSilentFor(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pendingCalls > 0 && time.Since(c.lastActivity) >= d
}
