// Package activity lets every process report to the database that it runs and how much it does, and
// lists these reports for operators. The package app runs a Reporter in each process. It never
// counts rows of the log.
package activity

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// DefaultInterval is the time between two reports.
const DefaultInterval = 10 * time.Second

const (
	// reportTimeout bounds one report, and lastTimeout the last one of a process that stops.
	reportTimeout = 3 * time.Second
	lastTimeout   = 2 * time.Second
	// typesInterval is the maximum time between two reports of event types, which have many rows.
	typesInterval = time.Minute
	// deleteInterval is the time between two deletions of old counts by one process.
	deleteInterval = 10 * time.Minute
)

// Reporter reports one process. While the database is unavailable it tries again at each interval.
type Reporter struct {
	// Pool is connected as postern_operator.
	Pool   *pgxpool.Pool
	Logger *slog.Logger
	// Process describes the process; the times and what State returns are ignored.
	Process Process
	// State returns what may have changed.
	State func(context.Context) State
	// Counters are the metrics of the process.
	Counters prometheus.Gatherer
	// Types are the stored event types; nil: this process stores none.
	Types *Types
	// Started is the start of the process by its own clock.
	Started time.Time
	// Interval is the time between two reports.
	Interval time.Duration

	// reported are the counters of the last report.
	reported map[string]Counts
	// reportedSecrets are how many requests each secret had verified at the last report.
	reportedSecrets map[sourceSecret]int64
	// typesAt is when this process last reported event types, and deletedAt when this process last
	// deleted old counts.
	typesAt, deletedAt time.Time
}

// Run reports until ctx ends, and then reports that the process has stopped.
func (r *Reporter) Run(ctx context.Context) error {
	r.reported, r.reportedSecrets = map[string]Counts{}, map[sourceSecret]int64{}
	failed := false
	_ = lifecycle.Repeat(ctx, r.Interval, nil, func(err error) {
		r.Logger.Warn("the activity of this process is not reported; retrying", "error", err)
	}, func(ctx context.Context) (more bool, err error) {
		// A stop does not interrupt a report, because it would be unknown whether it is committed.
		ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "report activity", reportTimeout)
		defer cancel()
		err = r.report(ctx)
		failed = err != nil
		return false, err
	})
	if !failed { // otherwise the last report would only delay the stop
		r.reportStop(ctx)
	}
	return nil
}

// report writes one report.
func (r *Reporter) report(ctx context.Context) error {
	if err := r.reportProcess(ctx); err != nil {
		return err
	}
	if err := r.reportCounts(ctx); err != nil {
		return err
	}
	if time.Since(r.typesAt) >= min(typesInterval, 6*r.Interval) {
		if err := r.reportTypes(ctx); err != nil {
			return err
		}
		r.typesAt = time.Now()
	}
	if time.Since(r.deletedAt) < deleteInterval {
		return nil
	}
	r.deletedAt = time.Now()
	return r.deleteOld(ctx)
}

// reportStop writes the last report and deletes the row of the process.
func (r *Reporter) reportStop(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "report the stop", lastTimeout)
	defer cancel()
	err := r.reportCounts(ctx)
	if err == nil {
		err = r.reportTypes(ctx)
	}
	if err == nil {
		_, err = r.Pool.Exec(ctx, deleteProcessSQL, r.Process.ID)
	}
	if err != nil {
		r.Logger.Debug("the stop of this process is not reported", "error", err)
	}
}
