package testkit_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func ping(t *testing.T, pool *pgxpool.Pool, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err := pool.Exec(ctx, "SELECT 1")
	return err
}

func TestFaultProxy_eachFault_isSeenByTheClient(t *testing.T) {
	t.Parallel()
	proxy := testkit.Proxy(t, testkit.Database(t).URL)
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	proxy.Cut()
	if err := ping(t, pool, time.Second); !postgres.IsUnavailable(err) {
		t.Fatalf("cut: %v, want an error that is classified as unavailable", err)
	}
	proxy.Restore()
	testkit.Eventually(t, 5*time.Second, func() error { return ping(t, pool, time.Second) })

	proxy.Stall()
	if err := ping(t, pool, 50*time.Millisecond); !postgres.IsUnavailable(err) {
		t.Fatalf("stalled: %v, want an error that is classified as unavailable", err)
	}
	proxy.Restore()
	testkit.Eventually(t, 5*time.Second, func() error { return ping(t, pool, time.Second) })

	proxy.Trickle(4, 10*time.Millisecond) // a query and its response are some tens of bytes
	began := time.Now()
	if err := ping(t, pool, 30*time.Second); err != nil || time.Since(began) < 100*time.Millisecond {
		t.Fatalf("trickling: %v after %s, want no error and at least 100ms", err, time.Since(began))
	}

	proxy.Delay(30 * time.Millisecond)
	began = time.Now()
	if err := ping(t, pool, 5*time.Second); err != nil || time.Since(began) < 60*time.Millisecond {
		t.Fatalf("delayed: %v after %s, want no error and at least 60ms", err, time.Since(began))
	}
}
