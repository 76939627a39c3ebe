package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
)

// CheckSchedules finds schedules of jobs that there are not, or that cannot read their parameters. Each problem names its line.
func CheckSchedules(cfg *config.Config) error {
	var bad []error
	for _, s := range cfg.Planned() {
		plan, ok := admin.Jobs[s.Job]
		if !ok {
			bad = append(bad, &config.Problem{Path: s.Path + ".job", Msg: fmt.Sprintf("job %q cannot be asked for by a schedule: write one of %s", s.Job,
				strings.Join(slices.Sorted(maps.Keys(admin.Jobs)), ", "))})
			continue
		}
		values := url.Values{}
		for parameter, value := range s.Parameters {
			values.Set(parameter, value)
		}
		if _, err := plan(context.Background(), nil, values); err != nil {
			bad = append(bad, &config.Problem{Path: s.Path + ".parameters", Msg: err.Error()})
		}
		if source := s.Parameters["source"]; source != "" && cfg.Sources[source] == nil {
			bad = append(bad, &config.Problem{Path: s.Path + ".parameters.source", Msg: fmt.Sprintf("source %q is not configured", source)})
		}
	}
	return cfg.Locate(errors.Join(bad...))
}

// schedules are a configuration's, as they are planned.
func schedules(cfg *config.Config) (all []runs.Schedule) {
	for _, s := range cfg.Planned() {
		all = append(all, runs.Schedule{Name: s.Name, Job: s.Job, Cron: s.Cron, TimeZone: s.TimeZone, Overlap: s.Overlap, Missed: s.Missed,
			Parameters: maps.Clone(s.Parameters)})
	}
	return all
}

// addRuns wires what plans runs, carries them out, measures them and tells of their end.
func (a *App) addRuns(ctx context.Context, pool *pgxpool.Pool, conn *stream.Conn, t Tuning, jobs map[string]runs.Carry) error {
	metrics, err := runs.NewMetrics(a.metrics, slices.Sorted(maps.Keys(jobs)))
	if err != nil {
		return err
	}
	if conn.Connected() {
		ctx, cancel := lifecycle.WithTimeout(ctx, "make the stream of runs", 5*time.Second)
		defer cancel()
		if err := conn.EnsureRuns(ctx, t.Limits); err != nil {
			a.Logger.Warn("stream of runs not made yet; tried again when a run has ended", "error", err)
		}
	}
	a.planner = &runs.Planner{Pool: pool, Jobs: admin.Jobs, Logger: a.Logger, Every: t.Runs.Poll}
	a.planner.Replace(schedules(a.Config))
	teller := runs.NewTeller(runs.Teller{Pool: pool, Metrics: metrics, Logger: a.Logger, Every: t.Runs.Poll, Again: t.Runs.Again,
		Publish: func(ctx context.Context, ended []runs.Run) []error { return publishRuns(ctx, conn, t.Limits, ended) }})
	a.loop("runs measured", func(ctx context.Context) error { return metrics.Watch(ctx, pool, t.Runs.Measure, a.Logger) })
	a.loop("runs told", teller.Run)
	a.loop("schedules", a.planner.Run)
	a.loop("runs", runs.NewRunner(runs.Options{Pool: pool, ID: processID(), Settings: t.Runs, Logger: a.Logger, Jobs: jobs, Ended: teller.Hurry,
		Metrics: metrics}).Run)
	return nil
}

// ended is the body of a message of the feed of runs.
type ended struct {
	Schema int `json:"schema"`
	*runs.Run
	// What a run that has ended no longer has.
	HeldBy    struct{}        `json:"held_by,omitzero"`
	UpdatedAt *events.Instant `json:"updated_at,omitzero"`
}

// publishRuns publishes runs that have ended, and makes the stream where it is not there.
func publishRuns(ctx context.Context, conn *stream.Conn, limits stream.Limits, all []runs.Run) []error {
	out := make([]error, len(all))
	ends := make([]stream.RunEnd, len(all))
	for i := range all {
		body, err := json.Marshal(ended{Schema: 1, Run: &all[i]})
		if err != nil {
			out[i] = err
		}
		ends[i] = stream.RunEnd{Job: all[i].Job, Status: string(all[i].Status), Envelope: body}
	}
	if !conn.Connected() {
		return fill(out, errors.New("no connection to the stream"))
	}
	gone := false
	for i, ack := range conn.PublishRuns(ctx, ends) {
		out[i] = errors.Join(out[i], ack.Err)
		gone = gone || stream.Gone(ack.Err)
	}
	if gone { // they are published the next time
		if err := conn.EnsureRuns(ctx, limits); err != nil {
			return fill(out, err)
		}
	}
	return out
}

func fill(out []error, err error) []error {
	for i := range out {
		out[i] = err
	}
	return out
}
