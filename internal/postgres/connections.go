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

// Connections is the group of all connections of a process's pools. A process that stops can close
// them: a commit has no deadline and would otherwise wait as long as PostgreSQL is stalled. The
// zero value is an empty group.
type Connections struct {
	mu     sync.Mutex
	closed bool
	open   map[*monitoredConn]struct{}
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
		_ = one.Conn.Close() // the embedded Conn, because Close of monitoredConn is for the reader
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

// dial opens a monitored connection to a server; l may be nil.
func (l *Connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	one := &monitoredConn{Conn: conn, group: l, after: checkAfter, every: checkInterval}
	if !l.add(one) {
		return nil, errors.Join(ErrConnectionsClosed, conn.Close())
	}
	return one, nil
}

func (l *Connections) add(one *monitoredConn) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.open == nil {
		l.open = map[*monitoredConn]struct{}{}
	}
	l.open[one] = struct{}{}
	return true
}

func (l *Connections) remove(one *monitoredConn) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, one)
}
