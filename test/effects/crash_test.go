package effects_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// crasher is a process that crashes at a point: at a message to the database, or at a request to
// the destination. After the crash it sends and receives nothing.
type crasher struct {
	// at is the number of the point, counted from 1. With 0 the process never crashes. after means
	// that the message at this point is still sent; otherwise it is not.
	at    int
	after bool
	// calls means that only requests to the destination are points.
	calls bool
	// ready means that the connections exist before the first point.
	ready bool
	// crashed is closed at the crash.
	crashed chan struct{}

	mu    sync.Mutex
	n     int
	dead  bool
	conns map[net.Conn]bool
}

func newCrasher(at int, after bool) *crasher {
	return &crasher{at: at, after: after, crashed: make(chan struct{}), conns: map[net.Conn]bool{}}
}

// neverCrashes returns a process that does not crash.
func neverCrashes() *crasher { return newCrasher(0, false) }

// errCrashed is the error of every operation of a crashed process.
var errCrashed = fmt.Errorf("dead: %w", context.Canceled)

// pass reports whether the process may pass the next point, and whether it crashes there.
func (m *crasher) pass(call bool) (may, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return false, false
	}
	if !m.counts(call) {
		return true, false
	}
	m.n++
	last = m.n == m.at
	if last { // no concurrent message is sent any more
		m.dead = true
	}
	return !last || m.after, last
}

// counts reports whether a message is a point.
func (m *crasher) counts(call bool) bool { return (call || !m.calls) && !m.ready }

// crash closes the connections.
func (m *crasher) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Close() // the process has crashed
	}
	m.conns = nil
	close(m.crashed)
}

// crasherConn is a connection to the database of a process that may crash.
type crasherConn struct {
	net.Conn
	m *crasher
}

func (c *crasherConn) Write(b []byte) (n int, err error) {
	may, last := c.m.pass(false)
	if may {
		n, err = c.Conn.Write(b)
	}
	if last {
		c.m.crash()
	}
	if !may || last {
		return 0, errCrashed
	}
	return n, err
}

func (c *crasherConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.dead {
		return 0, errCrashed
	}
	return n, err
}

// points returns the number of points so far.
func (m *crasher) points() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

// pool returns a copy of a pool, for a process that may crash.
func (m *crasher) pool(t testing.TB, like *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	cfg := like.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.MaxConns = 4
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.dead {
			_ = conn.Close() // it is not used yet
			return nil, errCrashed
		}
		m.conns[conn] = true
		return &crasherConn{conn, m}, nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		t.Error(err)
		return nil
	}
	if m.ready {
		m.connect(t, pool)
	}
	return pool
}

// connect opens two connections: a runner leases effects over one and records over the other.
func (m *crasher) connect(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	for range 2 {
		conn, err := pool.Acquire(context.Background())
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Release()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = false
}

// testDestination is the destination. Each process reaches it at an address of its own.
type testDestination struct {
	*sink.Sink
	url string
	mu  sync.Mutex
	of  map[string]*crasher
	// busy is the number of open requests.
	busy int
}

func newTestDestination(t testing.TB) *testDestination {
	t.Helper()
	o := &testDestination{Sink: sink.New(t), of: map[string]*crasher{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/{who}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		m := o.of[r.PathValue("who")]
		o.busy++
		o.mu.Unlock()
		defer o.over()
		r.URL.Path = "/" + r.PathValue("rest")
		o.serveProcess(m, w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	o.url = server.URL
	return o
}

func (o *testDestination) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy--
}

// waitUntilIdle waits until no request is open.
func (o *testDestination) waitUntilIdle(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, *patience, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.busy > 0 {
			return fmt.Errorf("%d requests are still open", o.busy)
		}
		return nil
	})
}

// serveProcess handles a request of a process.
func (o *testDestination) serveProcess(m *crasher, w http.ResponseWriter, r *http.Request) {
	may, last := m.pass(true)
	switch {
	case last && may:
		defer panic(http.ErrAbortHandler)
		defer m.crash()
		o.ServeHTTP(httptest.NewRecorder(), r)
	case last:
		m.crash()
		panic(http.ErrAbortHandler)
	case !may:
		panic(http.ErrAbortHandler)
	default:
		o.ServeHTTP(w, r)
	}
}

// addProcess returns the address at which a process reaches the destination.
func (o *testDestination) addProcess(who string, m *crasher) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[who] = m
	return o.url + "/" + who
}
