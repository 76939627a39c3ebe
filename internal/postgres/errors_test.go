package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestIsUnavailable_errors_areClassified(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for statement, unavailable := range map[string]bool{
		"SELECT 1/0":                            false,
		"SELEC 1":                               false,
		"INSERT INTO log_floor (ms) VALUES (1)": false,
		"SELECT 'not json'::jsonb":              false,
		"SELECT pg_terminate_backend(pg_backend_pid())":   true,
		"SET statement_timeout = 10; SELECT pg_sleep(10)": true,
		"BEGIN READ ONLY; CREATE TABLE x (a int)":         true, // the error of a standby
	} {
		if err := errorOf(t, db, statement); err == nil || postgres.IsUnavailable(err) != unavailable {
			t.Errorf("%s: %v, want unavailable %t", statement, err, unavailable)
		}
	}
}

// errorOf returns the error of a statement in a session of its own, which ends with its settings
// and transactions.
func errorOf(t *testing.T, db *testkit.DB, statement string) error {
	t.Helper()
	conn, err := db.Pool.Acquire(t.Context())
	testkit.Must(t, err)
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(t.Context(), statement).ReadAll()
	_ = conn.Conn().Close(t.Context())
	return err
}

func TestIsUnavailable_codes_areClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err         error
		code        string
		unavailable bool
	}{
		{nil, "", false},
		{errors.New("unexpected token"), "", false},
		{fmt.Errorf("read: %w", io.ErrUnexpectedEOF), "", true},
		{context.DeadlineExceeded, "", true},
		{fmt.Errorf("append: %w", &pgconn.PgError{Code: "53100"}), "53100", true},
		{&pgconn.PgError{Code: "53300"}, "53300", true},
		{&pgconn.PgError{Code: "57P01"}, "57P01", true},
		{&pgconn.PgError{Code: "08006"}, "08006", true},
		{&pgconn.PgError{Code: "40P01"}, "40P01", true},
		{&pgconn.PgError{Code: "25P03"}, "25P03", true},
		{&pgconn.PgError{Code: "25P04"}, "25P04", true},
		{&pgconn.PgError{Code: "25P02"}, "25P02", false},
		{&pgconn.PgError{Code: "22P05"}, "22P05", false},
		{&pgconn.PgError{Code: "23505"}, "23505", false},
		{&pgconn.PgError{Code: "42501"}, "42501", false},
	} {
		if got := postgres.Code(c.err); got != c.code {
			t.Errorf("code of %v is %q, want %q", c.err, got, c.code)
		}
		if got := postgres.IsUnavailable(c.err); got != c.unavailable {
			t.Errorf("unavailable is %t, want %t, of %v", got, c.unavailable, c.err)
		}
	}
}

// Some errors do not depend on the data, and stay until an operator changes something.
func TestNeedsOperator_codes_areClassified(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for statement, needsOperator := range map[string]bool{
		"SELECT 1":                 false,
		"SELECT 1/0":               false,
		"SELECT 'not json'::jsonb": false,
		"SET ROLE postern_gateway; DELETE FROM events": true,
		"SELECT nothing FROM log_floor":                true,
		"SELECT * FROM nothing.at_all":                 true,
		"INSERT INTO log_floor (ms) VALUES (1)":        false,
	} {
		if err := errorOf(t, db, statement); postgres.NeedsOperator(err) != needsOperator {
			t.Errorf("%s: %v, want NeedsOperator %t", statement, err, needsOperator)
		}
	}
	for code, needsOperator := range map[string]bool{"28P01": true, "28000": true, "3D000": true, "3F000": true,
		"55P03": true, "53100": false, "23505": false, "XX001": false, "P0001": false, "": false} {
		if got := postgres.NeedsOperator(fmt.Errorf("append: %w", &pgconn.PgError{Code: code})); got != needsOperator {
			t.Errorf("NeedsOperator is %t of %s", got, code)
		}
	}
}

// A read-only session stays read-only after the database accepts writes again. The first failed
// write closes it, and the next write succeeds.
func TestConnect_readOnlyError_closesSession(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	alter := func(what string) {
		t.Helper()
		db.Exec(t, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I "+what+"', current_database()); END $$")
	}
	alter("SET default_transaction_read_only = on")
	pool := single(t, db.URL)
	write := func() error { return errOf(pool.Exec(t.Context(), "CREATE TABLE written (a int)")) }
	if err := write(); postgres.Code(err) != "25006" || !postgres.IsUnavailable(err) {
		t.Fatalf("a read-only session: %v", err)
	}
	alter("RESET default_transaction_read_only")
	if err := write(); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}
