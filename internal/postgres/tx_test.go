package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

const patience = 10 * time.Second

func scratch(t *testing.T) *testkit.DB {
	t.Helper()
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), "CREATE TABLE scratch (n int PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	return db
}

func rows(t *testing.T, db *testkit.DB) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM scratch").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO scratch VALUES (1)")
	return err
}

func TestInTxCommitsOrNothing(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	boom := errors.New("boom")
	err := postgres.InTx(t.Context(), db.Pool, "write scratch", patience, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insert(ctx, tx), boom)
	})
	if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "write scratch: ") || rows(t, db) != 0 {
		t.Fatalf("got %v and %d rows, want the named error and none", err, rows(t, db))
	}
	if err := postgres.InTx(t.Context(), db.Pool, "write scratch", patience, insert); err != nil || rows(t, db) != 1 {
		t.Fatalf("got %v and %d rows, want one", err, rows(t, db))
	}
}

func TestInTxFreesTheSessionAfterAPanic(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	func() {
		defer func() { _ = recover() }()
		_ = postgres.InTx(t.Context(), db.Pool, "panic", patience, func(ctx context.Context, tx pgx.Tx) error {
			panic(insert(ctx, tx))
		})
	}()
	if n := db.Pool.Stat().AcquiredConns(); n != 0 || rows(t, db) != 0 {
		t.Errorf("%d sessions are still taken and %d rows stored, want none", n, rows(t, db))
	}
}

func TestInTxRetriesConflictsOnly(t *testing.T) {
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
		err := postgres.InTx(t.Context(), db.Pool, "contend", patience, func(ctx context.Context, tx pgx.Tx) error {
			if tries++; tries > c.failures {
				return nil
			}
			_, err := tx.Exec(ctx, fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '%s'; END $$", c.code))
			return err
		})
		if tries != c.tries || (err == nil) != c.ok {
			t.Errorf("%s failing %d times: %d tries, %v; want %d tries, success %t", c.code, c.failures, tries, err, c.tries, c.ok)
		}
	}
}

// Two transactions that take two rows in opposite order: PostgreSQL ends one, which must come through on its second try.
func TestInTxSurvivesADeadlock(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	if _, err := db.Pool.Exec(t.Context(), "INSERT INTO scratch VALUES (1), (2)"); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	first := []chan struct{}{make(chan struct{}), make(chan struct{})}
	for me := range 2 {
		group.Go(func() error {
			tries := 0
			return postgres.InTx(t.Context(), db.Pool, "lock rows", patience, func(ctx context.Context, tx pgx.Tx) error {
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

func TestInTxNamesItsTimeout(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	err := postgres.InTx(t.Context(), db.Pool, "wait long", 50*time.Millisecond, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(10)")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "wait long: not done within 50ms") || !postgres.IsUnavailable(err) {
		t.Errorf("got %v, want it named, and to be tried later", err)
	}
}

// Cancelled while it waits, a commit under synchronous replication becomes visible without being replicated.
func TestInTxNeverCancelsACommit(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	const slow = `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END';
	  CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON scratch DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`
	if _, err := db.Pool.Exec(t.Context(), slow); err != nil {
		t.Fatal(err)
	}
	if err := postgres.InTx(t.Context(), db.Pool, "commit slowly", 200*time.Millisecond, insert); err != nil || rows(t, db) != 1 {
		t.Errorf("got %v and %d rows; want the commit to be waited for", err, rows(t, db))
	}
}

func TestInTxRefusesNesting(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	err := postgres.InTx(t.Context(), db.Pool, "outer", patience, func(ctx context.Context, _ pgx.Tx) error {
		return postgres.InTx(ctx, db.Pool, "inner", patience, insert)
	})
	if !errors.Is(err, postgres.ErrNested) || rows(t, db) != 0 {
		t.Errorf("got %v and %d rows, want ErrNested and none", err, rows(t, db))
	}
}
