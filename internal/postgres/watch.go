package postgres

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// lostAfter is how long a call may last without a byte before it is asked whether the server still works on it, and askEvery how often that is asked then.
	lostAfter = 10 * time.Second
	askEvery  = 5 * time.Second
	// askWithin bounds the question.
	askWithin = 3 * time.Second
)

// workingSQL tells whether a session is in a transaction, be it a statement's own or one whose commit waits for a standby: all that time it holds the lock of its number.
const workingSQL = `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'virtualxid')`

// link is the connection of a session. Where somebody waits for an answer over it, and its server does nothing for it any more, the answer, or the call, got lost, and something between keeps
// the connection open: it is closed, so that no call waits for ever, whether it has a deadline or must have none for its commit's sake. A session that works, waits for a lock or for a
// standby, and a server that cannot be asked, are waited for.
type link struct {
	net.Conn
	// lines are those that it is one of; nil: none.
	lines        *Lines
	after, every time.Duration

	mu sync.Mutex
	// config and pid are of the session; 0: there is none yet, or none any more.
	config *pgx.ConnConfig
	pid    int32
	// waits is how many reads and writes are under way, moved is when the last of them began or ended.
	waits int
	moved time.Time
	timer *time.Timer
	// asking ends the questions that are under way.
	asking context.CancelFunc
}

// linkOf is the link of a session, below its encryption; nil where its dialer was another.
func linkOf(conn *pgx.Conn) *link {
	under := conn.PgConn().Conn()
	if encrypted, ok := under.(interface{ NetConn() net.Conn }); ok {
		under = encrypted.NetConn()
	}
	l, _ := under.(*link)
	return l
}

// watch has the calls of a session watched. pid is the server's own number of it, which a pooler between hides. config is ours from here on: whatever hosts it names, the server that is asked is the session's.
func (l *link) watch(config *pgx.ConnConfig, pid int32) {
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

// Read is net.Conn's.
func (l *link) Read(b []byte) (int, error) {
	l.moves(1)
	defer l.moves(-1)
	return l.Conn.Read(b)
}

// Write is net.Conn's.
func (l *link) Write(b []byte) (int, error) {
	l.moves(1)
	defer l.moves(-1)
	return l.Conn.Write(b)
}

// Close is net.Conn's.
func (l *link) Close() error {
	l.watch(nil, 0)
	l.moves(0)
	l.lines.remove(l)
	return l.Conn.Close()
}

// moves notes that a read or write begins or has ended: the silence is counted from here on.
func (l *link) moves(by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asking != nil {
		l.asking()
		l.asking = nil
	}
	l.waits += by
	l.moved = time.Now()
	switch {
	case l.waits == 0 || l.pid == 0:
		if l.timer != nil {
			l.timer.Stop()
		}
	case l.timer == nil:
		l.timer = time.AfterFunc(l.after, l.ask)
	default:
		l.timer.Reset(l.after)
	}
}

// silentFor says whether somebody has waited that long, and nothing moved.
func (l *link) silentFor(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits > 0 && time.Since(l.moved) >= d
}

// silent begins the questions, unless something has moved meanwhile.
func (l *link) silent() (ctx context.Context, config *pgx.ConnConfig, pid int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits == 0 || l.pid == 0 || time.Since(l.moved) < l.after {
		return nil, nil, 0
	}
	ctx, l.asking = context.WithCancel(context.Background())
	return ctx, l.config, l.pid
}

// ask asks until something moves, and closes what is lost. One answer that nothing is done may have met the moment between two statements.
func (l *link) ask() {
	ctx, config, pid := l.silent()
	if ctx == nil {
		return
	}
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for idle := 0; ctx.Err() == nil; {
		if idle++; works(ctx, config, pid) {
			idle = 0
		}
		if idle == 2 {
			l.lose(ctx)
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// lose closes the connection, unless something has moved since the questions began. Whoever waits for its answer gets an error.
func (l *link) lose(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() == nil {
		_ = l.Conn.Close()
	}
}

// works asks over a connection of its own, since all of a pool may hang: true also where nobody can say.
func works(ctx context.Context, config *pgx.ConnConfig, pid int32) (working bool) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return true
	}
	defer conn.Close(ctx)
	return conn.QueryRow(ctx, workingSQL, pid).Scan(&working) != nil || working
}
