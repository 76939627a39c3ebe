package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Of connections of several pools the silent ones can be cut, and all: then whoever waits gets an error that is PostgreSQL's trouble, and no other connection is had.
func TestLinesAreCut(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	lines := new(postgres.Lines)
	call := func(statement string) (ended chan error) {
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: db.URL, MaxConns: 1, Lines: lines})
		if err != nil {
			t.Fatal(err)
		}
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
