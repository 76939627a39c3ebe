package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/stream"
)

// CheckSchedules returns an error for each schedule with an unknown job or invalid parameters. Each
// error names the line of the configuration.
func CheckSchedules(cfg *config.Config) error {
	var errs []error
	for _, s := range cfg.AllSchedules() {
		build, ok := operations.Jobs[s.Job]
		if !ok {
			errs = append(errs, &settings.Problem{Path: s.Path + ".job",
				Msg: fmt.Sprintf("job %q cannot be scheduled: use one of %s", s.Job,
					strings.Join(slices.Sorted(maps.Keys(operations.Jobs)), ", "))})
			continue
		}
		if _, err := build(context.Background(), nil, s.Parameters); err != nil {
			errs = append(errs, &settings.Problem{Path: s.Path + ".parameters", Msg: err.Error()})
		}
		if source := s.Parameters["source"]; source != "" && cfg.Sources[source] == nil {
			errs = append(errs, &settings.Problem{Path: s.Path + ".parameters.source",
				Msg: fmt.Sprintf("source %q is not configured", source)})
		}
	}
	return cfg.Locate(errors.Join(errs...))
}

// configuredSchedules returns the schedules of a configuration.
func configuredSchedules(cfg *config.Config) (all []runs.Schedule) {
	for _, s := range cfg.AllSchedules() {
		all = append(all, runs.Schedule{Name: s.Name, Job: s.Job, Cron: s.Cron, TimeZone: s.TimeZone,
			Overlap: s.Overlap, Missed: s.Missed, Parameters: maps.Clone(s.Parameters)})
	}
	return all
}

// addRuns adds the planner of schedules, the runner, the metrics of runs and the publication of
// their ends.
func (a *App) addRuns(ctx context.Context, pool *pgxpool.Pool, conn *stream.Conn, t Tuning,
	jobs map[string]runs.Executor) error {
	metrics, err := runs.NewMetrics(a.metrics, slices.Sorted(maps.Keys(jobs)))
	if err != nil {
		return err
	}
	if conn.Connected() {
		ctx, cancel := lifecycle.WithTimeout(ctx, "create the stream of runs", 5*time.Second)
		defer cancel()
		if err := conn.EnsureRuns(ctx, t.Limits); err != nil {
			a.Logger.Warn("cannot create the stream of runs yet; retrying when a run has ended", "error", err)
		}
	}
	a.planner = &runs.Planner{Pool: pool, Jobs: operations.Jobs, Logger: a.Logger, Interval: t.Runs.PollInterval}
	a.planner.Replace(configuredSchedules(a.Config))
	publisher := runs.NewEndPublisher(runs.EndPublisher{Pool: pool, Metrics: metrics, Logger: a.Logger,
		Interval: t.Runs.PollInterval, RetryInterval: t.Runs.PublishRetryInterval,
		Publish: func(ctx context.Context, ended []runs.Run) []error {
			return publishRuns(ctx, conn, t.Limits, ended)
		}})
	a.loop("run metrics", func(ctx context.Context) error {
		return metrics.Watch(ctx, pool, t.Runs.MetricsInterval, a.Logger)
	})
	a.loop("run ends", publisher.Run)
	a.loop("schedules", a.planner.Run)
	a.loop("runs", runs.NewRunner(runs.Options{Pool: pool, ID: processID(), Settings: t.Runs, Logger: a.Logger,
		Jobs: jobs, OnEnd: publisher.Wake, Metrics: metrics}).Run)
	return nil
}

// endedRun is the body of a message about the end of a run.
type endedRun struct {
	Schema int `json:"schema"`
	*runs.Run
	// The fields below replace those of Run, so that JSON omits them: an ended run has no lease.
	LeaseOwner   struct{}        `json:"lease_owner,omitzero"`
	StalledSince struct{}        `json:"stalled_since,omitzero"`
	UpdatedAt    *events.Instant `json:"updated_at,omitzero"`
}

// publishRuns publishes ended runs, and creates the stream if it does not exist.
func publishRuns(ctx context.Context, conn *stream.Conn, limits stream.Limits, all []runs.Run) []error {
	out := make([]error, len(all))
	ends := make([]stream.RunEnd, len(all))
	for i := range all {
		body, err := json.Marshal(endedRun{Schema: 1, Run: &all[i]})
		if err != nil {
			out[i] = err
		}
		ends[i] = stream.RunEnd{Job: all[i].Job, Status: string(all[i].Status), Envelope: body}
	}
	if !conn.Connected() {
		return setAll(out, errors.New("no connection to the stream"))
	}
	missing := false
	for i, ack := range conn.PublishRuns(ctx, ends) {
		out[i] = errors.Join(out[i], ack.Err)
		missing = missing || stream.IsNotFound(ack.Err)
	}
	if missing { // the next attempt publishes them
		if err := conn.EnsureRuns(ctx, limits); err != nil {
			return setAll(out, err)
		}
	}
	return out
}

func setAll(out []error, err error) []error {
	for i := range out {
		out[i] = err
	}
	return out
}
