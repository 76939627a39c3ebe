package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// addProcessor wires the applying side and the maintenance of the tables.
func (a *App) addProcessor(ctx context.Context, t Tuning) error {
	cfg := a.Config
	pool, err := a.pool(ctx, string(cfg.Database.URL), "postern_processor", int32(cfg.Database.MaxConnections))
	if err != nil {
		return err
	}
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return err
	}
	known, err := register(ctx, pool, cfg)
	if err != nil {
		return err
	}
	url := cfg.Database.MaintenanceURL
	if url == "" {
		url = cfg.Database.URL
	}
	// Two sessions: retention's, which may wait long until a partition can be detached, and that of the partitions ahead.
	keeper, err := a.pool(ctx, string(url), "postern_maintenance", 2)
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	conn, err := a.connect(ctx, "processor", t.Limits)
	if err != nil {
		return err
	}
	p, err := processor.New(processor.Options{Pool: pool, Conn: conn, Limits: t.Limits, Sources: processorSources(cfg, known), Known: known, ID: processID(), Settings: t.Processor,
		Logger: a.Logger, Metrics: a.metrics})
	if err != nil {
		return err
	}
	a.loop("maintenance", func(ctx context.Context) error {
		return p.Maintain(ctx, keeper)
	})
	a.processor, a.registrar = p, pool
	a.loop("processor", p.Run)
	replays := &replay.Runner{Pool: pool, Processor: p, Chunk: replay.DefaultChunk}
	forgets := &retention.Runner{Pool: pool, Keeper: keeper, Processor: p}
	a.loop("retention", func(ctx context.Context) error {
		return retention.Daily(ctx, pool, retentionPolicy(cfg), t.RetentionEvery, a.Logger)
	})
	a.loop("runs", runs.NewRunner(runs.Options{Pool: pool, ID: processID(), Settings: t.Runs, Logger: a.Logger,
		Jobs: map[string]runs.Carry{replay.Job: replays.Carry, retention.Job: forgets.Carry}}).Run)
	a.ready = append(a.ready, pool.Ping, func(context.Context) error {
		if !conn.Connected() {
			return errors.New("nats: not connected")
		}
		return nil
	})
	return nil
}

// retentionPolicy is the configuration's section retention.
func retentionPolicy(c *config.Config) retention.Policy { return retention.Policy(c.Retention) }

// processID names this process in leases.
func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
