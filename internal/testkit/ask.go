package testkit

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Exec runs a statement as the superuser and returns how many rows it was about.
func (db *DB) Exec(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	done, err := db.Pool.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return done.RowsAffected()
}

// Rows are the texts that a query of one column returns to the superuser.
func (db *DB) Rows(t testing.TB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return texts
}
