package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
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
	keeper, err := a.pool(ctx, string(url), "postern_maintenance", 1)
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
		return processor.Maintain(ctx, keeper, t.Processor.KeepChanges, a.Logger)
	})
	a.processor, a.registrar = p, pool
	a.loop("processor", p.Run)
	replays := &replay.Runner{Pool: pool, Processor: p, Chunk: replay.DefaultChunk}
	a.loop("runs", runs.NewRunner(runs.Options{Pool: pool, ID: processID(), Settings: t.Runs, Logger: a.Logger,
		Jobs: map[string]runs.Carry{replay.Job: replays.Carry}}).Run)
	a.ready = append(a.ready, pool.Ping, func(context.Context) error {
		if !conn.Connected() {
			return errors.New("nats: not connected")
		}
		return nil
	})
	return nil
}

// processID names this process in leases.
func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
