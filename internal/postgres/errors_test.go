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

func TestWhoseTroubleAnErrorIs(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for statement, unavailable := range map[string]bool{
		"SELECT 1/0":                            false,
		"SELEC 1":                               false,
		"INSERT INTO log_floor (ms) VALUES (1)": false,
		"SELECT 'not json'::jsonb":              false,
		"SELECT pg_terminate_backend(pg_backend_pid())":   true,
		"SET statement_timeout = 10; SELECT pg_sleep(10)": true,
		"BEGIN READ ONLY; CREATE TABLE x (a int)":         true, // what a standby answers
	} {
		conn, err := db.Pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Conn().PgConn().Exec(t.Context(), statement).ReadAll()
		if err == nil || postgres.IsUnavailable(err) != unavailable {
			t.Errorf("%s: %v, want unavailable %t", statement, err, unavailable)
		}
		_ = conn.Conn().Close(t.Context()) // settings and transactions of the statement go with it
		conn.Release()
	}
}

func TestWhoseTroubleACodeIs(t *testing.T) {
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
