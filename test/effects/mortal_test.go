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

// mortal is a process that dies at a point: a message to the database, or a request to another
// side. From then on it says nothing to either, and hears nothing.
type mortal struct {
	// at is the number of the point, counted from 1; 0: it does not die. After: what is sent there
	// is sent, and done; else it is not.
	at    int
	after bool
	// calls: requests alone are points.
	calls bool
	// ready: it has its connections before the first point.
	ready bool
	// died is closed when it is dead.
	died chan struct{}

	mu    sync.Mutex
	n     int
	dead  bool
	conns map[net.Conn]bool
}

func newMortal(at int, after bool) *mortal {
	return &mortal{at: at, after: after, died: make(chan struct{}), conns: map[net.Conn]bool{}}
}

// immortal is a process that does not die.
func immortal() *mortal { return newMortal(0, false) }

// errDead is what a process meets that is dead.
var errDead = fmt.Errorf("dead: %w", context.Canceled)

// reaches the next point: may it be passed, and is it the last one?
func (m *mortal) reaches(call bool) (may, last bool) {
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
	if last { // nothing else gets through beside it
		m.dead = true
	}
	return !last || m.after, last
}

// counts says whether something is a point.
func (m *mortal) counts(call bool) bool { return (call || !m.calls) && !m.ready }

// die closes its connections.
func (m *mortal) die() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.conns {
		_ = c.Close() // it is dead
	}
	m.conns = nil
	close(m.died)
}

// mortalConn is a connection to the database of a process that may die.
type mortalConn struct {
	net.Conn
	m *mortal
}

func (c *mortalConn) Write(b []byte) (n int, err error) {
	may, last := c.m.reaches(false)
	if may {
		n, err = c.Conn.Write(b)
	}
	if last {
		c.m.die()
	}
	if !may || last {
		return 0, errDead
	}
	return n, err
}

func (c *mortalConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.m.dead {
		return 0, errDead
	}
	return n, err
}

// points is how many there were.
func (m *mortal) points() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

// pool is like another one, of a process that may die.
func (m *mortal) pool(t testing.TB, like *pgxpool.Pool) *pgxpool.Pool {
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
			_ = conn.Close() // nobody has it
			return nil, errDead
		}
		m.conns[conn] = true
		return &mortalConn{conn, m}, nil
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

// connect opens two connections: a runner takes over one and records over another.
func (m *mortal) connect(t testing.TB, pool *pgxpool.Pool) {
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

// other is the other side, which each process reaches at an address of its own.
type other struct {
	*sink.Sink
	url string
	mu  sync.Mutex
	of  map[string]*mortal
	// busy is how many requests are not over.
	busy int
}

func newOther(t testing.TB) *other {
	t.Helper()
	o := &other{Sink: sink.New(t), of: map[string]*mortal{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/{who}/{rest...}", func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		m := o.of[r.PathValue("who")]
		o.busy++
		o.mu.Unlock()
		defer o.over()
		r.URL.Path = "/" + r.PathValue("rest")
		o.asked(m, w, r)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	o.url = server.URL
	return o
}

func (o *other) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy--
}

// idle waits until all requests are over.
func (o *other) idle(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, *patience, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.busy > 0 {
			return fmt.Errorf("%d requests are not over", o.busy)
		}
		return nil
	})
}

// asked is a request of a process.
func (o *other) asked(m *mortal, w http.ResponseWriter, r *http.Request) {
	may, last := m.reaches(true)
	switch {
	case last && may:
		defer panic(http.ErrAbortHandler)
		defer m.die()
		o.ServeHTTP(httptest.NewRecorder(), r)
	case last:
		m.die()
		panic(http.ErrAbortHandler)
	case !may:
		panic(http.ErrAbortHandler)
	default:
		o.ServeHTTP(w, r)
	}
}

// reach is the address of a process's own.
func (o *other) reach(who string, m *mortal) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[who] = m
	return o.url + "/" + who
}
