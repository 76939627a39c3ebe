package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// sleeps says whether a session is in the middle of pg_sleep.
func sleeps(t *testing.T, db *testkit.DB, pid uint32) (yes bool) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", pid).Scan(&yes); err != nil {
		t.Fatal(err)
	}
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
			if err := c.end(t.Context(), cancel, proxy, pid); err != nil {
				t.Fatal(err)
			}
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
	if _, err := run(t.Context(), conn, sql, func(p *postgres.Params) { p.Bytes(nil) }, nil); err != nil {
		t.Fatal(err)
	}
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
	if _, err := db.Pool.Exec(t.Context(), "SELECT pg_terminate_backend($1, 30000)", conn.PgConn().PID()); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), conn, "SELECT $1::bigint + 1", func(p *postgres.Params) { p.Int64(41) }, nil); !postgres.IsUnavailable(err) || !conn.IsClosed() {
		t.Errorf("%v; closed: %t", err, conn.IsClosed())
	}
}

// A transaction in which we were silent for too long.
func TestRunAfterIdlingInATransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	conn := session(t, single(t, db.URL))
	if _, err := conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = '50ms'; BEGIN"); err != nil {
		t.Fatal(err)
	}
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
	if _, err := run(t.Context(), conn, sql, nil, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(300)"); err == nil {
		t.Fatal("it slept well")
	}
	if _, err := run(t.Context(), conn, sql, nil, nil); !errors.Is(err, net.ErrClosed) || !postgres.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
}
