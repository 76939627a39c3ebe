package events_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

// A commit that the standby does not have is seen after a restart of the primary. Its duplicate is acknowledged only once the standby has it, so that it is not lost with the primary.
func TestADuplicateWaitsForTheStandby(t *testing.T) {
	t.Parallel()
	b, pair := besideAPausedStandby(t)
	first := b.appendAside(t)
	testkit.Eventually(t, site.Patience, func() error { return waits(t, pair) })
	if err := errors.Join(pair.Kill(false), pair.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err == nil {
		t.Fatal("an append succeeded without the standby")
	}
	again := b.appendAside(t)
	testkit.Eventually(t, site.Patience, func() error {
		select {
		case err := <-again:
			t.Fatalf("the duplicate was acknowledged without the standby, or not at all (%v)", err)
		default:
		}
		return waits(t, pair)
	})
	if err := pair.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Fatal(err)
	}
	if err := pair.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := asked(t, pair, "SELECT count(*) FROM postern.events"); n != 2 {
		t.Errorf("the promoted standby has %d events, want the two that were acknowledged", n)
	}
}

// A wait for the standby that somebody cancels is no success, though PostgreSQL reports the commit as done: of an append, and of the duplicate that follows.
func TestACancelledWaitForTheStandbyIsNoReceipt(t *testing.T) {
	t.Parallel()
	b, pair := besideAPausedStandby(t)
	cancelled := func(what string, call <-chan error) error {
		t.Helper()
		testkit.Eventually(t, site.Patience, func() error { return waits(t, pair) })
		if n := asked(t, pair, "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); n != 1 {
			t.Fatalf("%s: %d waits cancelled", what, n)
		}
		return <-call
	}
	for _, what := range []string{"the first", "its duplicate"} {
		if err := cancelled(what, b.appendAside(t)); !errors.Is(err, events.ErrUnavailable) || !errors.Is(err, postgres.ErrUnconfirmed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	tx := make(chan error, 1)
	go func() {
		tx <- postgres.InTx(context.WithoutCancel(t.Context()), b.gateway, "write", site.Patience, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', '')")
			return err
		})
	}()
	if err := cancelled("a transaction", tx); !postgres.IsUnavailable(err) || !errors.Is(err, postgres.ErrUnconfirmed) {
		t.Errorf("a transaction: %v", err)
	}
	again := b.appendAside(t)
	testkit.Eventually(t, site.Patience, func() error { return waits(t, pair) })
	if err := pair.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-again; err != nil {
		t.Fatal(err)
	}
}

func startPair(t *testing.T) *site.Pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "postern-test-") // a test's own folder is closed to the account that PostgreSQL runs as
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	pair, err := site.StartPair(t.Context(), dir, false)
	t.Cleanup(func() {
		if err := errors.Join(pair.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// besideAPausedStandby is a gateway whose primary has a standby that takes nothing.
func besideAPausedStandby(t *testing.T) (*testBundle, *site.Pair) {
	t.Helper()
	pair := startPair(t)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: pair.URL, Role: "postern_gateway", MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &testBundle{gateway: pool}
	known, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	b.source = known.Number["shop"]
	b.append(t, b.delivery("{}", "before")) // which makes the day's partition
	if err := pair.Pause(true); err != nil {
		t.Fatal(err)
	}
	return b, pair
}

// appendAside appends the one delivery of the test.
func (b *testBundle) appendAside(t *testing.T) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := events.Append(context.WithoutCancel(t.Context()), b.gateway, []events.Delivery{b.delivery("{}", "k")})
		done <- err
	}()
	return done
}

// waits is nil where a session waits for the standby.
func waits(t *testing.T, pair *site.Pair) error {
	if n := asked(t, pair, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); n == 0 {
		return fmt.Errorf("no session waits for the standby")
	}
	return nil
}

func asked(t *testing.T, pair *site.Pair, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pair.Direct())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
