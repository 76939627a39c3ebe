package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// addProcessor adds the processor, the jobs and the maintenance of the tables.
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
	// Two connections: one for retention, which may wait long to detach a partition, and one that
	// creates partitions in advance.
	maintenancePool, err := a.pool(ctx, string(url), "postern_maintenance", 2)
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	conn, err := a.connect(ctx, "processor", t.Limits)
	if err != nil {
		return err
	}
	effectRunner, err := a.addEffects(ctx, t)
	if err != nil {
		return err
	}
	p, err := processor.New(processor.Options{ID: processID(), Settings: t.Processor, Options: apply.Options{
		Pool: pool, Conn: conn, Limits: t.Limits, Sources: processorSources(cfg, known), Known: known,
		Logger: a.Logger, Metrics: a.metrics, Planned: effectRunner.Wake}})
	if err != nil {
		return err
	}
	a.effects, a.processor = effectRunner, p
	a.replaceEffects(cfg)
	a.loop("effects", effectRunner.Run)
	if err := a.addNotify(ctx, t); err != nil {
		return err
	}
	a.loop("effect windows", a.windows.Run)
	a.loop("maintenance", func(ctx context.Context) error {
		return p.Maintain(ctx, maintenancePool)
	})
	a.sourcesPool = pool
	a.loop("processor", p.Run)
	// Runs have their own connections. Live batches may use all of the processor's connections
	// while they wait for a swap, and the swap needs one to finish.
	runsPool, err := a.namedPool(ctx, string(cfg.Database.URL), "postern_processor", "postern_processor_runs",
		runsConnections(t))
	if err != nil {
		return err
	}
	reconcileRunner, err := a.addReconcile(ctx, runsPool, p.WithPool(runsPool), known, t)
	if err != nil {
		return err
	}
	jobs := a.jobs(maintenancePool, p.WithPool(runsPool), t)
	jobs[reconcile.Job] = reconcileRunner.Execute
	if err := a.addRuns(ctx, runsPool, conn, t, jobs); err != nil {
		return err
	}
	a.loop("tidy", func(ctx context.Context) error {
		return rebuild.ClearAbandoned(ctx, runsPool, tidyInterval, a.Logger)
	})
	a.loop("retention", func(ctx context.Context) error {
		return retention.RequestDaily(ctx, runsPool, retention.Params{Policy: retentionPolicy(a.Config),
			Export: a.Config.Retention.Export != ""}, t.RetentionInterval, a.Logger)
	})
	a.senderRequests = &redaction.AutoRedactor{Pool: runsPool, Logger: a.Logger, Every: t.SenderRequestsInterval}
	a.senderRequests.Replace(sourcesRedactedOnRequest(cfg))
	a.loop("sender requests", a.senderRequests.Run)
	a.readyChecks = append(a.readyChecks, pool.Ping, p.Ready, func(context.Context) error {
		if !conn.Connected() {
			return errors.New("nats: not connected")
		}
		return nil
	})
	return nil
}

// runsConnections returns the maximum number of connections for runs. A run uses one for each
// worker, one for the reader ahead of them, and one for itself. One run of each job and those in
// the shared slots may be active. Planning, publishing and metrics share two connections. Refetches
// that append have their own. With fewer connections, workers that wait for a swap could block it.
func runsConnections(t Tuning) int32 {
	const jobs = 6
	return int32((jobs+t.Runs.SharedSlots)*(t.Processor.Workers+2) + 2 + refetch.MaxConcurrentApplies)
}

// jobs returns the executors of the jobs by name.
func (a *App) jobs(maintenancePool *pgxpool.Pool, applier *apply.Applier, t Tuning) map[string]runs.Executor {
	pool, rebuildSettings := applier.Pool, rebuild.DefaultSettings
	rebuildSettings.ResendAfter = t.Processor.ResendAfter
	replays := &replay.Runner{Pool: pool, Applier: applier, Chunk: replay.DefaultChunk}
	rebuilds := &rebuild.Runner{Pool: pool, Applier: applier, Settings: rebuildSettings}
	retentions := &retention.Runner{Pool: pool, MaintenancePool: maintenancePool, Applier: applier,
		Folder: a.Config.Retention.Export}
	redactions := &redaction.Runner{Pool: pool, Applier: applier, Conn: applier.Conn}
	return map[string]runs.Executor{replay.Job: replays.Execute, replay.RetryJob: replays.ExecuteRetry,
		rebuild.Job: rebuilds.Execute, retention.Job: retentions.Execute, redaction.Job: redactions.Execute}
}

// tidyInterval is the time between two searches for staged objects of ended rebuilds.
const tidyInterval = 10 * time.Second

// retentionPolicy returns the policy in the configuration's section retention.
func retentionPolicy(c *config.Config) retention.Policy {
	r := c.Retention
	return retention.Policy{Bodies: r.Bodies, Keys: r.Keys, Outcomes: r.Outcomes, Rejections: r.Rejections,
		Runs: r.Runs, Effects: r.Effects, EffectKeys: r.EffectKeys}
}

// sourcesRedactedOnRequest returns the sources whose senders' erasure requests are executed
// automatically.
func sourcesRedactedOnRequest(cfg *config.Config) (names []string) {
	for _, e := range cfg.Endpoints() {
		if e.RedactOnRequest {
			names = append(names, e.Source.Name)
		}
	}
	return names
}

// processID names this process in leases.
func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}
