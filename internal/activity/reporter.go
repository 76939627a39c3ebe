// Package activity lets every process report to the database that it runs and how much it does, and
// lists these reports for operators. The package app runs a Reporter in each process. It never
// counts rows of the log.
package activity

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// DefaultInterval is the time between two reports.
const DefaultInterval = 10 * time.Second

const (
	// reportTimeout bounds one report, and lastTimeout the last one of a process that stops.
	reportTimeout = 5 * time.Second
	lastTimeout   = 2 * time.Second
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
	// Started is the start of the process by its own clock.
	Started time.Time
	// Interval is the time between two reports.
	Interval time.Duration
}

// Run reports until ctx ends, and then reports that the process has stopped.
func (r *Reporter) Run(ctx context.Context) error {
	available := false
	_ = lifecycle.Repeat(ctx, r.Interval, nil, func(err error) {
		r.Logger.Warn("the activity of this process is not reported; retrying", "error", err)
	}, func(ctx context.Context) (more bool, err error) {
		within, cancel := lifecycle.WithTimeout(ctx, "report activity", reportTimeout)
		defer cancel()
		err = r.report(within)
		if ctx.Err() == nil { // a stop interrupts a report; that tells nothing about the database
			available = err == nil
		}
		return false, err
	})
	if available { // otherwise the last report would only delay the stop
		r.reportStop(ctx)
	}
	return nil
}

// report writes one report.
func (r *Reporter) report(ctx context.Context) error {
	return r.reportProcess(ctx)
}

// reportStop writes the last report and deletes the row of the process.
func (r *Reporter) reportStop(ctx context.Context) {
	ctx, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "report the stop", lastTimeout)
	defer cancel()
	if _, err := r.Pool.Exec(ctx, deleteProcessSQL, r.Process.ID); err != nil {
		r.Logger.Debug("the stop of this process is not reported", "error", err)
	}
}
