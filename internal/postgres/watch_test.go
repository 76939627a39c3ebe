package postgres_test

import (
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A call whose answer is lost ends, though its connection is kept open and the call has no deadline; one that the server still works on, or lets wait, does not.
func TestLostCallsEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		call string
		lost bool
	}{
		"lost":    {"SELECT pg_sleep(0.2)", true},
		"works":   {"SELECT pg_sleep(2)", false},
		"waits":   {"SELECT pg_advisory_xact_lock(1)", false},
		"between": {"BEGIN; SELECT pg_sleep(2); COMMIT", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			proxy := testkit.Proxy(t, db.URL)
			pool, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, MaxConns: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			if name == "waits" {
				held := db.Role(t, "gateway") // whose session goes away with the lock
				if _, err := held.Exec(t.Context(), `SELECT pg_advisory_lock(1)`); err != nil {
					t.Fatal(err)
				}
				defer time.AfterFunc(2*time.Second, held.Reset).Stop()
			}
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			postgres.Hasten(conn.Conn(), 100*time.Millisecond)
			if c.lost {
				proxy.StallLinks()
			}
			ended := make(chan error, 1)
			go func() {
				_, err := conn.Conn().PgConn().Exec(t.Context(), c.call).ReadAll()
				ended <- err
			}()
			select {
			case err := <-ended:
				if c.lost != postgres.IsUnavailable(err) || !c.lost && err != nil {
					t.Errorf("ended with %v", err)
				}
			case <-time.After(time.Minute):
				proxy.Cut()
				t.Errorf("still waits: %v", <-ended)
			}
		})
	}
}

// Of several hosts only the one that has the session is asked of it: another knows nothing of it.
func TestOnlyTheServerOfASessionIsAsked(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	served := make(chan struct{})
	defer func() { _ = l.Close(); <-served }()
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_ = conn.Close()
		}
	}()
	other, own := testkit.Proxy(t, l.Addr().String()), testkit.Proxy(t, testkit.Database(t).URL)
	u, err := url.Parse(own.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = other.Addr + "," + own.Addr
	u.RawQuery += "&target_session_attrs=any"
	other.Cut()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: u.String(), MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	other.Restore()
	postgres.Hasten(conn.Conn(), 100*time.Millisecond)
	if _, err := conn.Exec(t.Context(), "SELECT pg_sleep(2)"); err != nil {
		t.Error(err)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("the other host was asked %d times", n)
	}
	own.StallLinks()
	if _, err := conn.Exec(t.Context(), "SELECT 1"); !postgres.IsUnavailable(err) {
		t.Errorf("a lost call ended with %v", err)
	}
}

// A server that says no more after the login is given up, and with it the pool's place.
func TestASessionThatCannotBeSetUpIsGivenUp(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	defer func() { _ = l.Close(); <-served }()
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			server := pgproto3.NewBackend(conn, conn)
			if _, err := server.ReceiveStartupMessage(); err != nil {
				continue // a request to cancel, which is no session
			}
			server.Send(&pgproto3.AuthenticationOk{})
			server.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "17.0"})
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			if err := server.Flush(); err != nil {
				t.Error(err)
			}
		}
	}()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: "postgres://postern@" + l.Addr().String() + "/postern?sslmode=disable", Role: "postern_gateway", MaxConns: 1, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ended := make(chan error, 1)
	go func() { ended <- postgres.Prove(t.Context(), pool) }()
	select {
	case err := <-ended:
		if !postgres.IsUnavailable(err) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("still waits")
	}
}

// A session that was idle and does not answer is given up before a call has it; the URL may say after how long.
func TestPingsAreBounded(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{"postgres://x/y": 3 * time.Second, "postgres://x/y?pool_ping_timeout=7s": 7 * time.Second} {
		if cfg, err := postgres.PoolConfig(postgres.Options{URL: url}); err != nil || cfg.PingTimeout != want {
			t.Errorf("%s: %v, %v; want %s", url, cfg.PingTimeout, err, want)
		}
	}
}
