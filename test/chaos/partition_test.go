package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// All our processes are connected to one NATS server when it is cut off from the two others. They still reach it, and go elsewhere all the same: what comes in is applied while it is cut off.
func TestMinorityIsLeft(t *testing.T) {
	t.Parallel()
	r := setup(t, sources)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := r.watch(ctx); err != nil {
		t.Fatal(err)
	}
	pool, err := postgres.Connect(ctx, postgres.Options{URL: r.site.Postgres.Direct(), MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	group.Go(func() { r.fail(r.traffic.run(sending)) })
	group.Go(func() { r.senders.run(ctx, 4, r.traffic.out) })

	nats := r.site.NATS
	nats.Links[1].Cut()
	nats.Links[2].Cut()
	applied(t, pool) // by way of the one that is left
	nats.Partition(0, true)
	nats.Links[1].Restore()
	nats.Links[2].Restore()
	applied(t, pool)

	nats.Rejoin()
	stop()
	group.Wait()
	if err := r.senders.journal.close(); err != nil {
		t.Fatal(err)
	}
	if err := r.errors(); err != nil {
		t.Error(err)
	}
	r.holds(t)
}

// applied waits until some events that come in from now on have an outcome.
func applied(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var newest int64
	if err := pool.QueryRow(t.Context(), "SELECT coalesce(max(id), 0) FROM events").Scan(&newest); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	testkit.Eventually(t, 3*time.Minute, func() error {
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM outcomes WHERE event_id > $1", newest).Scan(&n); err != nil || n >= 100 {
			return err
		}
		return fmt.Errorf("%d events are applied, want 100", n)
	})
	t.Logf("100 events are applied after %s", time.Since(began).Round(100*time.Millisecond))
}
