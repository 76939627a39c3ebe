package postgres

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// checkAfter is how long a call may have no traffic before the monitor checks whether the
	// server still executes it. checkInterval is the time between two checks.
	checkAfter    = 10 * time.Second
	checkInterval = 5 * time.Second
	// checkTimeout limits one check.
	checkTimeout = 3 * time.Second
)

// sessionActiveSQL reports whether a session is in a transaction, including one whose commit waits
// for a standby. Until its end a transaction holds the lock of its virtual transaction id.
const sessionActiveSQL = `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'virtualxid')`

// monitoredConn is the connection of a session. If a call waits and the server executes nothing for
// it, the request or the response was lost. Something in between then keeps the connection open.
// The monitor closes such a connection, so that no call waits without limit, even without a
// deadline. It does not close connections of sessions that work, wait for a lock or for a standby,
// or whose server cannot be checked.
type monitoredConn struct {
	net.Conn
	// group is the group of the connection; nil: none.
	group        *Connections
	after, every time.Duration

	mu sync.Mutex
	// config and pid belong to the session. pid is 0 before the session starts and after it ends.
	config *pgx.ConnConfig
	pid    int32
	// pendingCalls is the number of open reads and writes. lastActivity is when the last of them
	// began or ended.
	pendingCalls int
	lastActivity time.Time
	timer        *time.Timer
	// cancelChecks ends the checks in progress.
	cancelChecks context.CancelFunc
}

// monitoredConnOf returns the connection below a session's encryption; nil for another dialer's
// connection.
func monitoredConnOf(conn *pgx.Conn) *monitoredConn {
	under := conn.PgConn().Conn()
	if encrypted, ok := under.(interface{ NetConn() net.Conn }); ok {
		under = encrypted.NetConn()
	}
	l, _ := under.(*monitoredConn)
	return l
}

// monitor starts the monitoring of a session. pid is the server's process id for it, which a pooler
// hides. The method changes config: checks always connect to the server of the session, whatever
// hosts config names.
func (l *monitoredConn) monitor(config *pgx.ConnConfig, pid int32) {
	if config != nil {
		server := l.Conn.RemoteAddr()
		config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer().DialContext(ctx, server.Network(), server.String())
		}
		config.ValidateConnect = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.config, l.pid = config, pid
}

// Read implements net.Conn.
func (l *monitoredConn) Read(b []byte) (int, error) {
	l.recordActivity(1)
	defer l.recordActivity(-1)
	return l.Conn.Read(b)
}

// Write implements net.Conn.
func (l *monitoredConn) Write(b []byte) (int, error) {
	l.recordActivity(1)
	defer l.recordActivity(-1)
	return l.Conn.Write(b)
}

// Close implements net.Conn.
func (l *monitoredConn) Close() error {
	l.monitor(nil, 0)
	l.recordActivity(0)
	l.group.remove(l)
	return l.Conn.Close()
}

// recordActivity records the start or end of a read or write, and restarts the timer.
func (l *monitoredConn) recordActivity(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancelChecks != nil {
		l.cancelChecks()
		l.cancelChecks = nil
	}
	l.pendingCalls += by
	l.lastActivity = time.Now()
	switch {
	case l.pendingCalls == 0 || l.pid == 0:
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(l.after, l.checkUntilActive)
	default:
		l.timer.Reset(l.after)
	}
}

// isSilentFor reports whether a call has been open for that long without traffic.
func (l *monitoredConn) isSilentFor(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pendingCalls > 0 && time.Since(l.lastActivity) >= d
}

// beginChecks starts the checks, unless there was traffic meanwhile.
func (l *monitoredConn) beginChecks() (ctx context.Context, config *pgx.ConnConfig, pid int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pendingCalls == 0 || l.pid == 0 || time.Since(l.lastActivity) < l.after {
		return nil, nil, 0
	}
	ctx, l.cancelChecks = context.WithCancel(context.Background())
	return ctx, l.config, l.pid
}

// checkUntilActive checks until there is traffic, and closes a lost connection. It needs two checks
// in a row, because one may fall between two statements.
func (l *monitoredConn) checkUntilActive() {
	ctx, config, pid := l.beginChecks()
	if ctx == nil {
		return
	}
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for idle := 0; ctx.Err() == nil; {
		if idle++; isSessionActive(ctx, config, pid) {
			idle = 0
		}
		if idle == 2 {
			l.closeUnlessActive(ctx)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// closeUnlessActive closes the connection, unless there was traffic since the checks began. An open
// call gets an error.
func (l *monitoredConn) closeUnlessActive(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil {
		_ = l.Conn.Close()
	}
}

// isSessionActive checks over a new connection, because all connections of a pool may be stalled.
// It returns true if the check fails.
func isSessionActive(ctx context.Context, config *pgx.ConnConfig, pid int32) (working bool) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return true
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, sessionActiveSQL, pid).Scan(&working) != nil || working
}
