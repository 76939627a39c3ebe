package rebuild_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// sized is a pool of the processor's role of so many connections.
func (b *testBundle) sized(t *testing.T, n int32) *pgxpool.Pool {
	t.Helper()
	cfg := b.pool.Config().Copy()
	cfg.MaxConns = n
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Lanes that hold all connections of their pool while they wait for a swap do not hold it up: it catches up over connections of its own, at the first try.
func TestSwapBesideAsManyLanesAsConnections(t *testing.T) {
	t.Parallel()
	r := seeded(t, 41)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
	live := b.sized(t, 4)
	s := processor.DefaultSettings
	s.Lanes = 4
	p, err := processor.New(processor.Options{Pool: live, Settings: s, ID: "p", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: b.sources})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var lanes sync.WaitGroup
	t.Cleanup(func() { cancel(); lanes.Wait() })
	var attempts atomic.Int64
	runner := func(pool *pgxpool.Pool) *rebuild.Runner {
		rebuilds := &rebuild.Runner{Pool: pool, Processor: p.On(pool), Settings: rebuild.DefaultSettings}
		rebuild.Step(rebuilds, func(name string) error {
			switch name {
			case "lock": // something to catch up with
				b.append(t, r, b.source, sim.Generate(r, kinds["steps"]).Events)
				return nil
			case "locked":
			default:
				return nil
			}
			attempts.Add(1)
			for i := range s.Lanes { // they wait for the lock that the swap has now
				lanes.Go(func() { _, _ = p.ApplyStored(ctx, processor.Target{Run: 1000 + int64(i)}, ids[:20], false) })
			}
			testkit.Eventually(t, patience, func() error {
				if live.Stat().AcquiredConns() < int32(s.Lanes) {
					return context.DeadlineExceeded
				}
				return nil
			})
			return nil
		})
		return rebuilds
	}
	own := b.sized(t, int32(s.Lanes)+2)
	carried := runs.NewRunner(runs.Options{Pool: own, ID: "one", Logger: slog.New(slog.DiscardHandler), Jobs: map[string]runs.Carry{rebuild.Job: runner(own).Carry},
		Settings: runs.Settings{Poll: 10 * time.Millisecond, Lease: 30 * time.Second, Slots: 1}})
	lanes.Go(func() { _ = carried.Run(ctx) })
	b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true}), done)
	if n := attempts.Load(); n != 1 {
		t.Errorf("swapped at attempt %d", n)
	}
}
