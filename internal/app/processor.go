package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
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
	carrier, err := a.addEffects(ctx, t)
	if err != nil {
		return err
	}
	p, err := processor.New(processor.Options{Pool: pool, Conn: conn, Limits: t.Limits, Sources: processorSources(cfg, known), Known: known, ID: processID(), Settings: t.Processor,
		Logger: a.Logger, Metrics: a.metrics, Planned: carrier.Wake})
	if err != nil {
		return err
	}
	a.effects, a.processor = carrier, p
	a.replaceEffects(cfg)
	a.loop("effects", carrier.Run)
	if err := a.addNotify(ctx, t); err != nil {
		return err
	}
	a.loop("effect windows", a.windows.Run)
	a.loop("maintenance", func(ctx context.Context) error {
		return p.Maintain(ctx, keeper)
	})
	a.registrar = pool
	a.loop("processor", p.Run)
	// Live batches may wait with all connections of theirs for a swap, which needs some to end.
	others, err := a.namedPool(ctx, string(cfg.Database.URL), "postern_processor", "postern_processor_runs", runsConnections(t))
	if err != nil {
		return err
	}
	fetched, err := a.addReconcile(ctx, others, p.On(others), known, t)
	if err != nil {
		return err
	}
	jobs := a.jobs(others, keeper, p.On(others))
	jobs[reconcile.Job] = fetched.Carry
	if err := a.addRuns(ctx, others, conn, t, jobs); err != nil {
		return err
	}
	a.loop("tidy", func(ctx context.Context) error { return rebuild.Tidy(ctx, others, tidyEvery, a.Logger) })
	a.loop("retention", func(ctx context.Context) error {
		return retention.Daily(ctx, others, retention.Order{Policy: retentionPolicy(a.Config), Export: a.Config.Retention.Export != ""}, t.RetentionEvery, a.Logger)
	})
	a.answers = &redaction.Answers{Pool: others, Logger: a.Logger, Every: t.AnswersEvery}
	a.answers.Replace(redactOnRequest(cfg))
	a.loop("senders' requests", a.answers.Run)
	a.ready = append(a.ready, pool.Ping, p.Ready, func(context.Context) error {
		if !conn.Connected() {
			return errors.New("nats: not connected")
		}
		return nil
	})
	return nil
}

// runsConnections is how many connections all that goes on about runs may hold at once: for each run, of which there is one of each job and some more, its lanes,
// one that reads ahead of them and one for itself, two for what plans, tells and measures, and those of looks that enter the mirror. With fewer, the lanes of runs that wait for a swap could keep it from its end.
func runsConnections(t Tuning) int32 {
	const jobs = 6
	return int32((jobs+t.Runs.Slots)*(t.Processor.Lanes+2) + 2 + reconcile.Entering)
}

// jobs are the jobs over the log, by name.
func (a *App) jobs(pool, keeper *pgxpool.Pool, p *processor.Processor) map[string]runs.Carry {
	replays := &replay.Runner{Pool: pool, Processor: p, Chunk: replay.DefaultChunk}
	rebuilds := &rebuild.Runner{Pool: pool, Processor: p, Settings: rebuild.DefaultSettings}
	forgets := &retention.Runner{Pool: pool, Keeper: keeper, Processor: p, Folder: a.Config.Retention.Export}
	redacts := &redaction.Runner{Pool: pool, Processor: p, Conn: p.Conn}
	return map[string]runs.Carry{replay.Job: replays.Carry, replay.RetryJob: replays.CarryRetry, rebuild.Job: rebuilds.Carry, retention.Job: forgets.Carry, redaction.Job: redacts.Carry}
}

// tidyEvery is how often a processor looks for what ended rebuilds have staged.
const tidyEvery = 10 * time.Second

// retentionPolicy is the configuration's section retention.
func retentionPolicy(c *config.Config) retention.Policy {
	r := c.Retention
	return retention.Policy{Bodies: r.Bodies, Keys: r.Keys, Outcomes: r.Outcomes, Rejections: r.Rejections, Runs: r.Runs, Effects: r.Effects, EffectKeys: r.EffectKeys}
}

// redactOnRequest are the sources whose senders' requests are carried out without a person.
func redactOnRequest(cfg *config.Config) (names []string) {
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
