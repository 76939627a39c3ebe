package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// single is a pool of one session, so that whoever comes next gets what the one before left.
func single(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: url, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// works fails unless the session of a pool still answers, and is the same as before where it should be.
func works(t *testing.T, pool *pgxpool.Pool, pid uint32) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var got int64
	if _, err := run(t.Context(), conn.Conn(), "SELECT $1::bigint + 1", func(p *postgres.Params) { p.Int64(41) }, func(r postgres.Row) error { got = r.Int64(0); return nil }); err != nil || got != 42 {
		t.Errorf("got %d, %v", got, err)
	}
	if c := conn.Conn().PgConn(); pid != 0 && c.PID() != pid || c.TxStatus() != 'I' {
		t.Errorf("session %d in state %c, want %d idle", c.PID(), c.TxStatus(), pid)
	}
}

var errRow = errors.New("row not wanted")

// Whoever refuses, the server or the reader of rows, the session goes on with the next statement.
func TestRunErrorsLeaveTheSession(t *testing.T) {
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
		{"SELECT 1 / (6 - n) FROM generate_series(1, 1 + $1::bigint) n", five, "22012", nil, 4}, // the server's error counts, not the reader's
		{"SELECT $1::jsonb", func(p *postgres.Params) { p.JSON([]byte("{")) }, "22P02", nil, 0},
		{"SELECT $1::text", func(p *postgres.Params) { p.Text("a\x00b") }, "22021", nil, 0},
		{"SELECT $1::int", five, "22P03", nil, 0},
		{"SELECT $1::bigint, $2::bigint", five, "08P01", nil, 0},
		{"SELECT nothing", nil, "42703", nil, 0},
	} {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		n, err := run(t.Context(), conn.Conn(), c.sql, c.add, func(postgres.Row) error {
			if seen++; seen == 4 {
				return errRow
			}
			return nil
		})
		if err == nil || postgres.Code(err) != c.code || c.err != nil && !errors.Is(err, c.err) || n != 0 || seen != c.rows {
			t.Errorf("%s: %v after %d rows, %d affected; want %q after %d", c.sql, err, seen, n, c.code, c.rows)
		}
		pid := conn.Conn().PgConn().PID()
		conn.Release()
		works(t, pool, pid)
	}
}

// Who panics over a row does not leave the rest of the answer to the next.
func TestRunPanicClosesTheSession(t *testing.T) {
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

func TestRunRefusesABusySession(t *testing.T) {
	t.Parallel()
	conn := session(t, testkit.Database(t).Pool)
	open, err := conn.Query(t.Context(), "SELECT generate_series(1, 10)")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); err == nil || postgres.IsUnavailable(err) {
		t.Errorf("got %v while another answer is read", err)
	}
	open.Close()
	if _, err := run(t.Context(), conn, "SELECT 1", nil, nil); err != nil {
		t.Error(err)
	}
}

func TestRunInTransactions(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	pool := single(t, db.URL)
	add := func(ctx context.Context, tx pgx.Tx, n int32) error {
		_, err := run(ctx, tx.Conn(), "INSERT INTO scratch VALUES ($1)", func(p *postgres.Params) { p.Int32(n) }, nil)
		return err
	}
	err := postgres.InTx(t.Context(), pool, "write twice", patience, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(add(ctx, tx, 1), add(ctx, tx, 1))
	})
	if postgres.Code(err) != "23505" || rows(t, db) != 0 {
		t.Errorf("%v and %d rows, want none", err, rows(t, db))
	}
	works(t, pool, 0)
	if err := postgres.InTx(t.Context(), pool, "write", patience, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT 1"); err != nil { // pgx and Run take turns
			return err
		}
		return errors.Join(add(ctx, tx, 1), add(ctx, tx, 2))
	}); err != nil || rows(t, db) != 2 {
		t.Errorf("%v and %d rows, want 2", err, rows(t, db))
	}
	works(t, pool, 0)
}

// What took a prepared statement away, or changed what it rests on, costs one run.
func TestRunPreparesAgain(t *testing.T) {
	t.Parallel()
	pool := single(t, scratch(t).URL)
	conn := session(t, pool)
	const sql = "SELECT * FROM scratch WHERE n = $1::bigint"
	one := func(p *postgres.Params) { p.Int64(1) }
	for meddle, code := range map[string]string{"SELECT 1": "", "DEALLOCATE ALL": "26000", "ALTER TABLE scratch ADD more int": "0A000"} {
		if _, err := run(t.Context(), conn, sql, one, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), meddle, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), conn, sql, one, nil); postgres.Code(err) != code {
			t.Errorf("after %s: %v, want %q", meddle, err, code)
		}
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(t.Context(), conn, sql, one, nil); err != nil {
			t.Errorf("once more after %s: %v", meddle, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Statements are prepared once, with the settings that they ask for; not at all where the URL forbids it.
func TestRunPreparesOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for mode, want := range map[string]string{"cache_statement": "5|off", "exec": "0|on", "cache_describe": "0|on", "simple_protocol": "0|on"} {
		conn := session(t, single(t, db.URL+"&default_query_exec_mode="+mode))
		s := postgres.Statement{Name: "counted", SQL: "SELECT $1::int", Session: "SET jit = off"}
		if _, err := conn.Exec(t.Context(), "SET jit = on"); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			p := postgres.NewParams(conn, s)
			p.Int32(1)
			if _, err := p.Run(t.Context(), nil); err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			p.Release()
		}
		var got string
		if err := conn.QueryRow(t.Context(), `SELECT coalesce((SELECT custom_plans + generic_plans FROM pg_prepared_statements WHERE name = 'counted'), 0) || '|' || current_setting('jit')`,
			pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got != want {
			t.Errorf("%s: %s runs and jit, %v, want %s", mode, got, err, want)
		}
	}
}
