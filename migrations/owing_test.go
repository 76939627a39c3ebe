package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/migrations"
)

const insertObject = `INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank, tie_set, overflow,
  window_lo, window_hi, look_after, ambiguous, deleted, state_hash, exact_hash, repaired, last_event_id, revision, rule_version, created_at, updated_at)
  VALUES (1, '', 'customer', $1, false, 1, 0, 1, '[]', false, 1, 1, 5, true, false, '', '', false, 1, 1, 1, clock_now(), clock_now())`

// makeOwing carries out the migration that makes the index, whatever its number, as goose does: each statement by itself.
func makeOwing(ctx context.Context, pool *pgxpool.Pool) error {
	names, err := fs.Glob(migrations.Files, "*_objects_owing.sql")
	if err != nil || len(names) != 1 {
		return fmt.Errorf("%v, %w", names, err)
	}
	text, err := migrations.Files.ReadFile(names[0])
	if err != nil {
		return err
	}
	for statement := range strings.SplitSeq(regexp.MustCompile(`(?m)^--.*$`).ReplaceAllString(string(text), ""), ";") {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func owingIsValid(t *testing.T, pool *pgxpool.Pool) bool {
	t.Helper()
	var valid bool
	if err := pool.QueryRow(t.Context(), `SELECT indisvalid FROM pg_index WHERE indexrelid = 'objects_owing'::regclass`).Scan(&valid); err != nil {
		t.Fatal(err)
	}
	return valid
}

// Applying goes on while the index is made, also where a transaction that began before keeps it waiting.
func TestTheIndexOfOwingObjectsBlocksNobody(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), `DROP INDEX objects_owing`); err != nil {
		t.Fatal(err)
	}
	old, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(t.Context(), insertObject, "old"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- makeOwing(t.Context(), db.Pool) }()
	testkit.Eventually(t, 30*time.Second, func() error {
		var waits bool
		err := db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE datname = current_database() AND phase LIKE 'waiting%')`).Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the index is not being made")
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := db.Pool.Exec(ctx, insertObject, "new"); err != nil {
		t.Errorf("applying waits for the index: %v", err)
	}
	if err := old.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !owingIsValid(t, db.Pool) {
		t.Error("the index is not valid")
	}
}

// A server that ended in the middle leaves an index that is never used; the next try makes it again.
func TestAnInterruptedIndexIsMadeAgain(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'objects_owing'::regclass`); err != nil {
		t.Fatal(err)
	}
	if owingIsValid(t, db.Pool) {
		t.Fatal("the index is valid before")
	}
	if err := makeOwing(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
	if !owingIsValid(t, db.Pool) {
		t.Error("the index is not valid")
	}
}
