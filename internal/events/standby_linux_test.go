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

// A commit that the standby does not have is visible after a restart of the primary. Its duplicate
// is acknowledged only after the standby has it, so that it is not lost with the primary.
func TestAppend_duplicateOfUnconfirmedCommit_waitsForStandby(t *testing.T) {
	t.Parallel()
	b, pair := setupPausedStandby(t)
	first := b.appendInBackground(t)
	testkit.Eventually(t, site.OperationTimeout, func() error { return checkWaiting(t, pair) })
	testkit.Must(t, errors.Join(pair.Kill(false), pair.Start(t.Context())))
	if err := <-first; err == nil {
		t.Fatal("an append succeeded without the standby")
	}
	again := b.appendInBackground(t)
	testkit.Eventually(t, site.OperationTimeout, func() error {
		select {
		case err := <-again:
			t.Fatalf("the duplicate was acknowledged without the standby, or not at all (%v)", err)
		default:
		}
		return checkWaiting(t, pair)
	})
	testkit.Must(t, pair.Resume())
	testkit.Must(t, <-again)
	testkit.Must(t, pair.Promote(t.Context()))
	if n := queryInt(t, pair, "SELECT count(*) FROM postern.events"); n != 2 {
		t.Errorf("the promoted standby has %d events, want the two that were acknowledged", n)
	}
}

// A cancelled wait for the standby is no success, although PostgreSQL reports the commit as done.
// This holds for an append and for the duplicate after it.
func TestAppend_cancelledStandbyWait_returnsNoReceipt(t *testing.T) {
	t.Parallel()
	b, pair := setupPausedStandby(t)
	cancelled := func(what string, call <-chan error) error {
		t.Helper()
		testkit.Eventually(t, site.OperationTimeout, func() error { return checkWaiting(t, pair) })
		if n := queryInt(t, pair, "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity WHERE "+
			"wait_event = 'SyncRep'"); n != 1 {
			t.Fatalf("%s: %d waits cancelled", what, n)
		}
		return <-call
	}
	for _, what := range []string{"the first", "its duplicate"} {
		if err := cancelled(what, b.appendInBackground(t)); !errors.Is(err, events.ErrUnavailable) ||
			!errors.Is(err, postgres.ErrUnconfirmed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	tx := make(chan error, 1)
	go func() {
		tx <- postgres.InTx(context.WithoutCancel(t.Context()), b.gateway, "write", site.OperationTimeout,
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', '')")
				return err
			})
	}()
	if err := cancelled("a transaction", tx); !postgres.IsUnavailable(err) || !errors.Is(err, postgres.ErrUnconfirmed) {
		t.Errorf("a transaction: %v", err)
	}
	again := b.appendInBackground(t)
	testkit.Eventually(t, site.OperationTimeout, func() error { return checkWaiting(t, pair) })
	testkit.Must(t, pair.Resume())
	testkit.Must(t, <-again)
}

func startPair(t *testing.T) *site.PostgresPair {
	t.Helper()
	// PostgreSQL's account cannot enter a test's own folder
	dir, err := os.MkdirTemp("", "postern-test-")
	testkit.Must(t, err)
	testkit.Must(t, os.Chmod(dir, 0o711))
	pair, err := site.StartPostgres(t.Context(), dir, false)
	t.Cleanup(func() {
		if err := errors.Join(pair.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, err)
	return pair
}

// setupPausedStandby returns a gateway whose primary has a paused standby.
func setupPausedStandby(t *testing.T) (*testBundle, *site.PostgresPair) {
	t.Helper()
	pair := startPair(t)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: pair.URL, Role: "postern_gateway", MaxConns: 4})
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	b := &testBundle{gateway: pool}
	registered, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "shopify"})
	testkit.Must(t, err)
	b.source = registered.Number["shop"]
	b.append(t, b.delivery("{}", "before")) // creates the partition of the day
	testkit.Must(t, pair.Pause(true))
	return b, pair
}

// appendInBackground appends the test's delivery.
func (b *testBundle) appendInBackground(t *testing.T) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := events.Append(context.WithoutCancel(t.Context()), b.gateway, []events.Delivery{b.delivery("{}", "k")})
		done <- err
	}()
	return done
}

// checkWaiting returns nil if a session waits for the standby.
func checkWaiting(t *testing.T, pair *site.PostgresPair) error {
	if n := queryInt(t, pair, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"); n == 0 {
		return fmt.Errorf("no session waits for the standby")
	}
	return nil
}

func queryInt(t *testing.T, pair *site.PostgresPair, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pair.PrimaryURL())
	testkit.Must(t, err)
	defer conn.Close(t.Context())
	testkit.Must(t, conn.QueryRow(t.Context(), sql).Scan(&n))
	return n
}
