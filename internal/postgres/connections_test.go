package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// If a server sends nothing after the login, the session is closed and its place in the pool is
// free.
func TestConnect_stalledSetup_timesOut(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	served := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-served })
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
	pool := connect(t, postgres.Options{URL: "postgres://postern@" + l.Addr().String() + "/postern?sslmode=disable",
		Role: "postern_gateway", MaxConns: 1, Lazy: true})
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

// CloseSilent closes the silent connections of several pools, CloseAll all of them. Open calls then
// get an error for which IsUnavailable is true, and no new connection is opened.
func TestConnections_closeAll_endsCalls(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	lines := new(postgres.Connections)
	call := func(statement string) (ended chan error) {
		pool := connect(t, postgres.Options{URL: db.URL, MaxConns: 1, Connections: lines})
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
	testkit.Must(t,
		db.Pool.QueryRow(t.Context(),
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid).Scan(&yes))
	return yes
}

// When a statement is interrupted in whatever way, Run returns soon, its session is closed, the
// error names the cause, and the server stops the statement.
func TestRun_cancelled_closesSession(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	type interrupted struct {
		cancel func()
		proxy  *testkit.FaultProxy
		pid    uint32
	}
	for name, c := range map[string]struct {
		end  func(context.Context, interrupted) error
		want error
		code string
		// gone: the server notices the closed connection.
		gone bool
	}{
		"deadline": {func(context.Context, interrupted) error { return nil }, context.DeadlineExceeded, "", true},
		"cancelled": {func(_ context.Context, s interrupted) error { s.cancel(); return nil }, context.Canceled, "",
			true},
		"cut off": {func(_ context.Context, s interrupted) error { s.proxy.Cut(); return nil }, nil, "", false},
		"terminated": {func(ctx context.Context, s interrupted) error {
			return errOf(db.Pool.Exec(ctx, "SELECT pg_terminate_backend($1)", s.pid))
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
			testkit.Must(t, c.end(t.Context(), interrupted{cancel, proxy, pid}))
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
	testkit.Must(t, errOf(run(t.Context(), conn, sql, func(p *postgres.Params) { p.Bytes(nil) }, nil)))
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

// A session that has ended or is closing is not used again.
func TestRun_endedSession_isUnavailable(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	for name, end := range map[string]func(*testing.T, *pgx.Conn){
		"ended by the server while it was idle": func(t *testing.T, conn *pgx.Conn) {
			db.Exec(t, "SELECT pg_terminate_backend($1, 30000)", conn.PgConn().PID())
		},
		"a transaction that was idle for too long": func(t *testing.T, conn *pgx.Conn) {
			testkit.ExecSQL(t, conn, "SET idle_in_transaction_session_timeout = '50ms'; BEGIN")
			testkit.Eventually(t, time.Minute, func() error {
				var there bool
				err := db.Pool.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1",
					conn.PgConn().PID()).Scan(&there)
				if err == nil && there {
					err = errors.New("the session goes on")
				}
				return err
			})
		},
		"closed by pgx": func(t *testing.T, conn *pgx.Conn) {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := conn.Exec(ctx, "SELECT pg_sleep(300)"); err == nil {
				t.Fatal("it slept well")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := session(t, single(t, db.URL))
			const sql = "INSERT INTO scratch VALUES (1) ON CONFLICT DO NOTHING"
			testkit.Must(t, errOf(run(t.Context(), conn, sql, nil, nil)))
			end(t, conn)
			again := sql
			if name == "a transaction that was idle for too long" {
				again = "SELECT 1" // this session must prepare it first
			}
			_, err := run(t.Context(), conn, again, nil, nil)
			if !postgres.IsUnavailable(err) || !conn.IsClosed() ||
				name == "closed by pgx" && !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v; closed: %t", err, conn.IsClosed())
			}
		})
	}
}
