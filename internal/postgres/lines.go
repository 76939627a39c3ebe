package postgres

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// ErrCut is the error of a connection that is asked for after Lines.Cut.
var ErrCut = errors.New("the connections with PostgreSQL are given up")

// Lines are the connections of pools together, for a process that ends: what has no deadline for its commit's sake would wait as long as PostgreSQL hangs. The zero value has none.
type Lines struct {
	mu   sync.Mutex
	cut  bool
	open map[*link]struct{}
}

// Cut closes every connection and has no other opened: whoever waits for an answer gets an error for which IsUnavailable holds, and what it asked for may be done nevertheless.
func (l *Lines) Cut() {
	l.mu.Lock()
	l.cut = true
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for one := range open {
		_ = one.Conn.Close() // the link's own Close is for whoever reads from it
	}
}

// CutSilent closes the connections over which an answer has been waited for that long without a byte, and tells how many: a call that PostgreSQL still works on is among them, and ends for whoever waits as Cut ends it.
func (l *Lines) CutSilent(after time.Duration) (cut int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range l.open {
		if one.silentFor(after) {
			_ = one.Conn.Close()
			delete(l.open, one)
			cut++
		}
	}
	return cut
}

// dial opens a link to a server; l may be nil.
func (l *Lines) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := dialer().DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	one := &link{Conn: conn, lines: l, after: lostAfter, every: askEvery}
	if !l.add(one) {
		return nil, errors.Join(ErrCut, conn.Close())
	}
	return one, nil
}

func (l *Lines) add(one *link) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	if l.open == nil {
		l.open = map[*link]struct{}{}
	}
	l.open[one] = struct{}{}
	return true
}

func (l *Lines) remove(one *link) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, one)
}
