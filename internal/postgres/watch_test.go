package postgres_test

import (
	"context"
	"errors"
	"fmt"
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
			must(t, err)
			t.Cleanup(pool.Close)
			if name == "waits" {
				held := db.Role(t, "gateway") // whose session goes away with the lock
				execSQL(t, held, `SELECT pg_advisory_lock(1)`)
				defer time.AfterFunc(2*time.Second, held.Reset).Stop()
			}
			conn, err := pool.Acquire(t.Context())
			must(t, err)
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
	must(t, err)
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
	must(t, err)
	u.Host = other.Addr + "," + own.Addr
	u.RawQuery += "&target_session_attrs=any"
	other.Cut()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: u.String(), MaxConns: 1})
	must(t, err)
	t.Cleanup(pool.Close)
	conn, err := pool.Acquire(t.Context())
	must(t, err)
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
	must(t, err)
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

// Of connections of several pools the silent ones can be cut, and all: then whoever waits gets an error that is PostgreSQL's trouble, and no other connection is had.
func TestLinesAreCut(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	lines := new(postgres.Lines)
	call := func(statement string) (ended chan error) {
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: db.URL, MaxConns: 1, Lines: lines})
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
	if n := lines.CutSilent(0); n != 0 {
		t.Errorf("%d connections are cut over which nobody waits", n)
	}
	waits := call(`SELECT pg_sleep(600)`)
	testkit.Eventually(t, time.Minute, func() error {
		if lines.CutSilent(200*time.Millisecond) == 0 {
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
	lines.Cut()
	if err := <-waits; !postgres.IsUnavailable(err) {
		t.Errorf("all were cut, and it ended with %v", err)
	}
	if pool, err := postgres.Connect(t.Context(), postgres.Options{URL: db.URL, Lines: lines}); !postgres.IsUnavailable(err) {
		t.Errorf("there is another connection: %v", err)
		pool.Close()
	}
}

// sleeps says whether a session is in the middle of pg_sleep.
func sleeps(t *testing.T, db *testkit.DB, pid uint32) (yes bool) {
	t.Helper()
	must(t,
		db.Pool.QueryRow(t.Context(),
			"SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid).Scan(&yes))
	return yes
}

// Whatever ends a statement in the middle, Run returns soon, its session is closed, the error says what it was, and the server
// does not go on for nobody.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for name, c := range map[string]struct {
		end  func(ctx context.Context, cancel func(), proxy *testkit.FaultProxy, pid uint32) error
		want error
		code string
		// gone: the server hears of it.
		gone bool
	}{
		"deadline":  {func(context.Context, func(), *testkit.FaultProxy, uint32) error { return nil }, context.DeadlineExceeded, "", true},
		"cancelled": {func(_ context.Context, cancel func(), _ *testkit.FaultProxy, _ uint32) error { cancel(); return nil }, context.Canceled, "", true},
		"cut off":   {func(_ context.Context, _ func(), p *testkit.FaultProxy, _ uint32) error { p.Cut(); return nil }, nil, "", false},
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
			if took := time.Since(began); took > 10*time.Second || !conn.IsClosed() {
				t.Errorf("it took %s; closed: %t", took, conn.IsClosed())
			}
			if !postgres.IsUnavailable(err) || postgres.Code(err) != c.code || c.want != nil && !errors.Is(err, c.want) {
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

// A write that nobody takes ends with the context too.
func TestRunInterruptedWhileWriting(t *testing.T) {
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
	if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second || !conn.IsClosed() {
		t.Errorf("%v after %s; closed: %t", err, took, conn.IsClosed())
	}
	if _, err := run(ctx, conn, sql, func(p *postgres.Params) { p.Bytes(nil) }, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v of a context that had ended", err)
	}
}

// A session that the server ended while nobody used it.
func TestRunOnALostSession(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := single(t, db.URL)
	works(t, pool, 0)
	conn := session(t, pool)
	db.Exec(t, "SELECT pg_terminate_backend($1, 30000)", conn.PgConn().PID())
	if _, err := run(t.Context(), conn, "SELECT $1::bigint + 1", func(p *postgres.Params) { p.Int64(41) }, nil); !postgres.IsUnavailable(err) || !conn.IsClosed() {
		t.Errorf("%v; closed: %t", err, conn.IsClosed())
	}
}

// A transaction in which we were silent for too long.
func TestRunAfterIdlingInATransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	conn := session(t, single(t, db.URL))
	execSQL(t, conn, "SET idle_in_transaction_session_timeout = '50ms'; BEGIN")
	testkit.Eventually(t, time.Minute, func() (err error) {
		var there bool
		if err = db.Pool.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1", conn.PgConn().PID()).Scan(&there); err == nil && there {
			err = errors.New("the session goes on")
		}
		return err
	})
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); !postgres.IsUnavailable(err) || !conn.IsClosed() {
		t.Errorf("%v; closed: %t", err, conn.IsClosed())
	}
}

// A session that pgx has given up, and may still be closing, gets nothing more to do.
func TestRunOnASessionGivenUp(t *testing.T) {
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
