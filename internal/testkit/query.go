package testkit

import (
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Exec runs a statement as the superuser and returns the number of affected rows.
func (db *DB) Exec(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	tag, err := db.Pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// QueryStrings runs a query of one text column as the superuser and returns its values.
func (db *DB) QueryStrings(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// WantRows reports another number of rows than expected. from is a table and the rest of a query.
func (db *DB) WantRows(t testing.TB, want int, from string, args ...any) {
	t.Helper()
	if got := db.QueryStrings(t, "SELECT count(*)::text FROM "+from, args...)[0]; got != strconv.Itoa(want) {
		t.Errorf("%s rows, want %d: %s", got, want, from)
	}
}

// ReplaceClock makes an SQL expression the clock of the database.
func (db *DB) ReplaceClock(t testing.TB, expression string) {
	t.Helper()
	db.Exec(t, "CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT "+
		expression+"$$")
}

// StopClock stops the clock of the database at a time. A test moves it in the table test_clock.
func (db *DB) StopClock(t testing.TB, at time.Time) {
	t.Helper()
	db.Exec(t, "CREATE TABLE test_clock (at timestamptz NOT NULL)")
	db.Exec(t, "GRANT SELECT ON test_clock TO PUBLIC")
	db.Exec(t, "INSERT INTO test_clock VALUES ($1)", at)
	db.ReplaceClock(t, "at FROM postern.test_clock")
}
