package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// If a server sends nothing after the login, the session is closed and its place in the pool is
// free.
func TestConnect_stalledSetup_timesOut(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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
				continue // a cancel request, which is not a session
			}
			server.Send(&pgproto3.AuthenticationOk{})
			server.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "17.0"})
			server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
			if err := server.Flush(); err != nil {
				t.Error(err)
			}
		}
	}()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: "postgres://postern@" + l.Addr().String() +
		"/postern?sslmode=disable", Role: "postern_gateway", MaxConns: 1, Lazy: true})
	must(t, err)
	defer pool.Close()
	ended := make(chan error, 1)
	go func() { ended <- postgres.CheckConnection(t.Context(), pool) }()
	select {
	case err := <-ended:
		if !postgres.IsUnavailable(err) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("still waits")
	}
}

// An idle session that does not respond is closed before a call gets it. The URL may set the
// timeout.
func TestPool_ping_timesOut(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]time.Duration{"postgres://x/y": 3 * time.Second,
		"postgres://x/y?pool_ping_timeout=7s": 7 * time.Second} {
		if cfg, err := postgres.PoolConfig(postgres.Options{URL: url}); err != nil || cfg.PingTimeout != want {
			t.Errorf("%s: %v, %v; want %s", url, cfg.PingTimeout, err, want)
		}
	}
}

// CloseSilent closes the silent connections of several pools, CloseAll all of them. Open calls then
// get an error for which IsUnavailable is true, and no new connection is opened.
func TestConnections_closeAll_endsCalls(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	lines := new(postgres.Connections)
	call := func(statement string) (ended chan error) {
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: db.URL, MaxConns: 1, Connections: lines})
		must(t, err)
		t.Cleanup(pool.Close)
		ended = make(chan error, 1)
		go func() {
			_, err := pool.Exec(t.Context(), statement)
			_, again := pool.Exec(t.Context(), `SELECT 1`)
			ended <- errors.Join(err, again)
		}()
		return ended
	}
	if err := <-call(`SELECT 1`); err != nil {
		t.Errorf("before: %v", err)
	}
	if n := lines.CloseSilent(0); n != 0 {
		t.Errorf("%d idle connections were closed", n)
	}
	waits := call(`SELECT pg_sleep(600)`)
	testkit.Eventually(t, time.Minute, func() error {
		if lines.CloseSilent(200*time.Millisecond) == 0 {
			return errors.New("none is silent")
		}
		return nil
	})
	if err := <-waits; !postgres.IsUnavailable(err) {
		t.Errorf("a silent one ended with %v", err)
	}
	if err := <-call(`SELECT 1`); err != nil {
		t.Errorf("another one after it: %v", err)
	}
	waits = call(`SELECT pg_sleep(600)`)
	lines.CloseAll()
	if err := <-waits; !postgres.IsUnavailable(err) {
		t.Errorf("all were cut, and it ended with %v", err)
	}
	if pool, err := postgres.Connect(t.Context(),
		postgres.Options{URL: db.URL, Connections: lines}); !postgres.IsUnavailable(
		err) {
		t.Errorf("there is another connection: %v", err)
		pool.Close()
	}
}

// sleeps reports whether a session is in pg_sleep.
func sleeps(t *testing.T, db *testkit.DB, pid uint32) (yes bool) {
	t.Helper()
	must(t,
		db.Pool.QueryRow(t.Context(),
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid).Scan(&yes))
	return yes
}

// When a statement is interrupted in whatever way, Run returns soon, its session is closed, the
// error names the cause, and the server stops the statement.
func TestRun_cancelled_closesSession(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for name, c := range map[string]struct {
		end  func(ctx context.Context, cancel func(), proxy *testkit.FaultProxy, pid uint32) error
		want error
		code string
		// gone: the server notices the closed connection.
		gone bool
	}{
		"deadline": {func(context.Context, func(), *testkit.FaultProxy, uint32) error { return nil },
			context.DeadlineExceeded, "", true},
		"cancelled": {func(_ context.Context, cancel func(), _ *testkit.FaultProxy,
			_ uint32) error {
			cancel()
			return nil
		}, context.Canceled, "", true},
		"cut off": {func(_ context.Context, _ func(), p *testkit.FaultProxy, _ uint32) error { p.Cut(); return nil },
			nil, "", false},
		"terminated": {func(ctx context.Context, _ func(), _ *testkit.FaultProxy, pid uint32) error {
			_, err := db.Pool.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
			return err
		}, nil, "57P01", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := testkit.Proxy(t, db.URL)
			conn := session(t, single(t, proxy.URL))
			timeout := time.Minute
			if name == "deadline" {
				timeout = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			pid := conn.PgConn().PID()
			ended := make(chan error, 1)
			go func() {
				_, err := run(ctx, conn, "SELECT pg_sleep($1::bigint)", func(p *postgres.Params) { p.Int64(300) }, nil)
				ended <- err
			}()
			testkit.Eventually(t, time.Minute, func() error {
				if !sleeps(t, db, pid) && ctx.Err() == nil {
					return errors.New("it does not sleep yet")
				}
				return nil
			})
			must(t, c.end(t.Context(), cancel, proxy, pid))
			began := time.Now()
			err := <-ended
			if elapsed := time.Since(began); elapsed > 10*time.Second || !conn.IsClosed() {
				t.Errorf("it lasted %s; closed: %t", elapsed, conn.IsClosed())
			}
			if !postgres.IsUnavailable(err) || postgres.Code(err) != c.code || c.want != nil &&
				!errors.Is(err, c.want) {
				t.Errorf("got %v", err)
			}
			if c.gone {
				testkit.Eventually(t, time.Minute, func() error {
					if sleeps(t, db, pid) {
						return fmt.Errorf("session %d sleeps on", pid)
					}
					return nil
				})
			}
		})
	}
}

// A write that the server does not read ends with the context too.
func TestRun_cancelledWhileWriting_closesSession(t *testing.T) {
	t.Parallel()
	proxy := testkit.Proxy(t, testkit.Database(t).URL)
	conn := session(t, single(t, proxy.URL))
	const sql = "SELECT length($1::bytea)"
	must(t, errOf(run(t.Context(), conn, sql, func(p *postgres.Params) { p.Bytes(nil) }, nil)))
	large := postgres.NewParams(conn, statement(sql))
	defer large.Release()
	large.Bytes(make([]byte, 32<<20))
	proxy.Stall()
	defer proxy.Restore()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := large.Run(ctx, nil)
	if elapsed := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || elapsed > 10*time.Second ||
		!conn.IsClosed() {
		t.Errorf("%v after %s; closed: %t", err, elapsed, conn.IsClosed())
	}
	if _, err := run(ctx, conn, sql, func(p *postgres.Params) { p.Bytes(nil) }, nil); !errors.Is(err,
		context.DeadlineExceeded) {
		t.Errorf("%v of a context that had ended", err)
	}
}

// A session that the server ended while it was idle.
func TestRun_lostSession_isUnavailable(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := single(t, db.URL)
	works(t, pool, 0)
	conn := session(t, pool)
	db.Exec(t, "SELECT pg_terminate_backend($1, 30000)", conn.PgConn().PID())
	if _, err := run(t.Context(), conn, "SELECT $1::bigint + 1", func(p *postgres.Params) { p.Int64(41) },
		nil); !postgres.IsUnavailable(err) || !conn.IsClosed() {
		t.Errorf("%v; closed: %t", err, conn.IsClosed())
	}
}

// A transaction that was idle for too long.
func TestRun_idleInTransaction_isUnavailable(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	conn := session(t, single(t, db.URL))
	execSQL(t, conn, "SET idle_in_transaction_session_timeout = '50ms'; BEGIN")
	testkit.Eventually(t, time.Minute, func() (err error) {
		var there bool
		if err = db.Pool.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1",
			conn.PgConn().PID()).Scan(&there); err == nil && there {
			err = errors.New("the session goes on")
		}
		return err
	})
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); !postgres.IsUnavailable(err) || !conn.IsClosed() {
		t.Errorf("%v; closed: %t", err, conn.IsClosed())
	}
}

// A session that pgx has closed, or is closing, is not used again.
func TestRun_closedSession_isUnavailable(t *testing.T) {
	t.Parallel()
	conn := session(t, single(t, scratch(t).URL))
	const sql = "INSERT INTO scratch VALUES (1)"
	must(t, errOf(run(t.Context(), conn, sql, nil, nil)))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(300)"); err == nil {
		t.Fatal("it slept well")
	}
	if _, err := run(t.Context(), conn, sql, nil, nil); !errors.Is(err, net.ErrClosed) || !postgres.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}
