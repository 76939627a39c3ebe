package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// single is a pool of one session, so that each caller gets the previous caller's session.
func single(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return connect(t, postgres.Options{URL: url, MaxConns: 1})
}

// works fails the test unless the session of a pool still works, and is the same as before where it
// should be.
func works(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	testkit.Must(t, err)
	defer conn.Release()
	var got int64
	if _, err := run(t.Context(), conn.Conn(), "SELECT $1::bigint + 1", func(p *postgres.Params) { p.Int64(41) },
		func(r postgres.Row) error { got = r.Int64(0); return nil }); err != nil || got != 42 {
		t.Errorf("got %d, %v", got, err)
	}
	if c := conn.Conn().PgConn(); pid != 0 && c.PID() != pid || c.TxStatus() != 'I' {
		t.Errorf("session %d in state %c, want %d idle", c.PID(), c.TxStatus(), pid)
	}
}

var errRow = errors.New("row not wanted")

// After an error of the server or of the row function, the session executes the next statement.
func TestRun_serverError_keepsSession(t *testing.T) {
	t.Parallel()
	pool := single(t, testkit.Database(t).URL)
	five := func(p *postgres.Params) { p.Int64(5) }
	for _, c := range []struct {
		sql  string
		add  func(*postgres.Params)
		code string
		err  error
		rows int
	}{
		{"SELECT 10 / (3 - n) FROM generate_series(1, $1::bigint) n", five, "22012", nil, 2},
		{"SELECT n FROM generate_series(1, $1::bigint) n /* unwanted */", five, "", errRow, 4},
		// the server's error has priority over the function's
		{"SELECT 1 / (6 - n) FROM generate_series(1, 1 + $1::bigint) n", five, "22012", nil, 4},
		{"SELECT $1::jsonb", func(p *postgres.Params) { p.JSON([]byte("{")) }, "22P02", nil, 0},
		{"SELECT $1::text", func(p *postgres.Params) { p.Text("a\x00b") }, "22021", nil, 0},
		{"SELECT $1::int", five, "22P03", nil, 0},
		{"SELECT $1::bigint, $2::bigint", five, "08P01", nil, 0},
		{"SELECT nothing", nil, "42703", nil, 0},
	} {
		conn, err := pool.Acquire(t.Context())
		testkit.Must(t, err)
		seen := 0
		n, err := run(t.Context(), conn.Conn(), c.sql, c.add, func(postgres.Row) error {
			if seen++; seen == 4 {
				return errRow
			}
			return nil
		})
		if err == nil || postgres.Code(err) != c.code || c.err != nil && !errors.Is(err, c.err) || n != 0 ||
			seen != c.rows {
			t.Errorf("%s: %v after %d rows, %d affected; want %q after %d", c.sql, err, seen, n, c.code, c.rows)
		}
		pid := conn.Conn().PgConn().PID()
		conn.Release()
		works(t, pool, pid)
	}
}

// A panic in the row function does not leave unread rows for the next caller.
func TestRun_panic_closesSession(t *testing.T) {
	t.Parallel()
	pool := single(t, testkit.Database(t).URL)
	conn := session(t, pool)
	func() {
		defer func() { _ = recover() }()
		_, _ = run(t.Context(), conn, "SELECT generate_series(1, 1000)", nil, func(postgres.Row) error { panic("no") })
	}()
	if !conn.IsClosed() {
		t.Error("the session is open")
	}
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); !postgres.IsUnavailable(err) {
		t.Errorf("got %v of a closed session", err)
	}
}

func TestRun_busySession_isRejected(t *testing.T) {
	t.Parallel()
	conn := session(t, testkit.Database(t).Pool)
	open, err := conn.Query(t.Context(), "SELECT generate_series(1, 10)")
	testkit.Must(t, err)
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); err == nil || postgres.IsUnavailable(err) {
		t.Errorf("got %v while another answer is read", err)
	}
	open.Close()
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestRun_inTransaction_takesPart(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	pool := single(t, db.URL)
	add := func(ctx context.Context, tx pgx.Tx, n int32) error {
		_, err := run(ctx, tx.Conn(), "INSERT INTO scratch VALUES ($1)", func(p *postgres.Params) { p.Int32(n) }, nil)
		return err
	}
	err := postgres.InTx(t.Context(), pool, "write twice", shortTimeout, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(add(ctx, tx, 1), add(ctx, tx, 1))
	})
	if postgres.Code(err) != "23505" || rows(t, db) != 0 {
		t.Errorf("%v and %d rows, want none", err, rows(t, db))
	}
	works(t, pool, 0)
	if err := postgres.InTx(t.Context(), pool, "write", shortTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT 1"); err != nil { // pgx and Run take turns
			return err
		}
		return errors.Join(add(ctx, tx, 1), add(ctx, tx, 2))
	}); err != nil || rows(t, db) != 2 {
		t.Errorf("%v and %d rows, want 2", err, rows(t, db))
	}
	works(t, pool, 0)
}

// If a prepared statement was removed, or its tables changed, one run fails.
func TestRun_changedTable_preparesAgain(t *testing.T) {
	t.Parallel()
	pool := single(t, scratch(t).URL)
	conn := session(t, pool)
	const sql = "SELECT * FROM scratch WHERE n = $1::bigint"
	one := func(p *postgres.Params) { p.Int64(1) }
	for meddle, code := range map[string]string{"SELECT 1": "", "DEALLOCATE ALL": "26000",
		"ALTER TABLE scratch ADD more int": "0A000"} {
		testkit.Must(t, errOf(run(t.Context(), conn, sql, one, nil)))
		testkit.ExecSQL(t, conn, meddle, pgx.QueryExecModeSimpleProtocol)
		if _, err := run(t.Context(), conn, sql, one, nil); postgres.Code(err) != code {
			t.Errorf("after %s: %v, want %q", meddle, err, code)
		}
		tx, err := conn.Begin(t.Context())
		testkit.Must(t, err)
		if _, err := run(t.Context(), conn, sql, one, nil); err != nil {
			t.Errorf("once more after %s: %v", meddle, err)
		}
		testkit.Must(t, tx.Rollback(t.Context()))
	}
}

// Statements are prepared once, with their session settings. If the URL disables it, they are not
// prepared.
func TestRun_sameStatement_preparesOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for mode, want := range map[string]string{"cache_statement": "5|off", "exec": "0|on", "cache_describe": "0|on",
		"simple_protocol": "0|on"} {
		conn := session(t, single(t, db.URL+"&default_query_exec_mode="+mode))
		s := postgres.Statement{Name: "counted", SQL: "SELECT $1::int", SetupSQL: "SET jit = off"}
		testkit.ExecSQL(t, conn, "SET jit = on")
		for range 5 {
			p := postgres.NewParams(conn, s)
			p.Int32(1)
			if _, err := p.Run(t.Context(), nil); err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			p.Release()
		}
		var got string
		if err := conn.QueryRow(t.Context(), `SELECT coalesce((SELECT custom_plans + generic_plans
			FROM pg_prepared_statements WHERE name = 'counted'), 0) || '|' || current_setting('jit')`,
			pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s runs and jit, %v, want %s", mode, got, err, want)
		}
	}
}

const shortTimeout = 10 * time.Second

func scratch(t *testing.T) *testkit.DB {
	t.Helper()
	db := testkit.Database(t)
	db.Exec(t, "CREATE TABLE scratch (n int PRIMARY KEY)")
	return db
}

func rows(t *testing.T, db *testkit.DB) (n int) {
	t.Helper()
	testkit.Must(t, db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM scratch").Scan(&n))
	return n
}

func insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO scratch VALUES (1)")
	return err
}

// After an error or a panic nothing is stored, and the session is free.
func TestInTx_failures_rollBack(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		timeout time.Duration
		do      func(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool) error
		want    error
		says    string
	}{
		"error": {shortTimeout, func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			return errors.Join(insert(ctx, tx), boom)
		}, boom, "write scratch: boom"},
		"panic": {shortTimeout, func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			panic(errors.Join(insert(ctx, tx), boom))
		}, boom, ""},
		"timeout": {50 * time.Millisecond, func(ctx context.Context, tx pgx.Tx, _ *pgxpool.Pool) error {
			return errors.Join(insert(ctx, tx), errOf(tx.Exec(ctx, "SELECT pg_sleep(10)")))
		}, context.DeadlineExceeded, "write scratch: not done within 50ms"},
		"nested transaction": {shortTimeout, func(ctx context.Context, _ pgx.Tx, pool *pgxpool.Pool) error {
			return postgres.InTx(ctx, pool, "inner", shortTimeout, insert)
		}, postgres.ErrNested, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := scratch(t)
			err := func() (err error) {
				defer func() {
					if thrown, ok := recover().(error); ok {
						err = thrown
					}
				}()
				return postgres.InTx(t.Context(), db.Pool, "write scratch", c.timeout,
					func(ctx context.Context, tx pgx.Tx) error { return c.do(ctx, tx, db.Pool) })
			}()
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) ||
				postgres.IsUnavailable(err) != (name == "timeout") {
				t.Errorf("got %v, want %v as %q", err, c.want, c.says)
			}
			// the session of a cancelled statement is closed in the background
			if n := db.Pool.Stat().AcquiredConns(); n != 0 && name != "timeout" || rows(t, db) != 0 {
				t.Errorf("%d sessions are still in use and %d rows stored, want none", n, rows(t, db))
			}
			if err := postgres.InTx(t.Context(), db.Pool, "write scratch", shortTimeout, insert); err != nil ||
				rows(t, db) != 1 {
				t.Errorf("got %v and %d rows after it, want one", err, rows(t, db))
			}
		})
	}
}

func TestInTx_conflicts_areRetried(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	for _, c := range []struct {
		code            string
		failures, tries int
		ok              bool
	}{
		{"40001", 2, 3, true}, {"40P01", 5, 6, true}, {"40001", 99, 6, false}, {"23505", 99, 1, false},
	} {
		tries := 0
		err := postgres.InTx(t.Context(), db.Pool, "contend", shortTimeout, func(ctx context.Context, tx pgx.Tx) error {
			if tries++; tries > c.failures {
				return nil
			}
			_, err := tx.Exec(ctx, fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '%s'; END $$", c.code))
			return err
		})
		if tries != c.tries || (err == nil) != c.ok {
			t.Errorf("%s failing %d times: %d tries, %v; want %d tries, success %t", c.code, c.failures, tries, err,
				c.tries, c.ok)
		}
	}
}

// Two transactions lock two rows in opposite order. PostgreSQL ends one of them, whose second
// attempt must succeed.
func TestInTx_deadlock_isRetried(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	db.Exec(t, "INSERT INTO scratch VALUES (1), (2)")
	var group errgroup.Group
	first := []chan struct{}{make(chan struct{}), make(chan struct{})}
	for me := range 2 {
		group.Go(func() error {
			tries := 0
			return postgres.InTx(t.Context(), db.Pool, "lock rows", shortTimeout,
				func(ctx context.Context, tx pgx.Tx) error {
					const lock = "SELECT FROM scratch WHERE n = $1 FOR UPDATE"
					if _, err := tx.Exec(ctx, lock, 1+me); err != nil {
						return err
					}
					if tries++; tries == 1 {
						close(first[me])
						<-first[1-me]
					}
					_, err := tx.Exec(ctx, lock, 2-me)
					return err
				})
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// If a commit under synchronous replication is cancelled while it waits, it becomes visible without
// being replicated.
func TestInTx_commit_isNeverCancelled(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	const slow = `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END';
	  CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON scratch DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION
	  	slow()`
	db.Exec(t, slow)
	if err := postgres.InTx(t.Context(), db.Pool, "commit slowly", 200*time.Millisecond, insert); err != nil ||
		rows(t, db) != 1 {
		t.Errorf("got %v and %d rows; want the commit to be waited for", err, rows(t, db))
	}
}
