package runs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// Executor executes a run from its checkpoint and returns its status: Running if all work is done,
// Done if it has ended the run itself (CompleteInTx). An error from Permanent ends the run as
// Failed, one from Pause pauses it. An error from Requeue lets the run wait. After any other error
// the run continues later from its checkpoint. The logger names the run.
type Executor func(ctx context.Context, h *Lease, log *slog.Logger) (Status, error)

// permanentError marks an error that no retry resolves.
type permanentError struct {
	error
	// end is the status that the run gets.
	end Status
}

func (r *permanentError) Unwrap() error { return r.error }

// Permanent marks an error that no retry resolves: it ends the run as Failed.
func Permanent(err error) error { return &permanentError{err, Failed} }

// Pause changes an error from Permanent, so that it pauses the run instead: the run must not end in
// its present state. remedy says what the operator can do. It returns any other error as it is.
func Pause(err error, remedy string) error {
	if errors.As(err, new(*permanentError)) {
		return &permanentError{fmt.Errorf("%w. %s", err, remedy), Paused}
	}
	return err
}

// DecodeParams reads the parameters of the run. It rejects unknown fields, because a field of a
// later release may change the meaning of the others. Its errors are permanent.
func (h *Lease) DecodeParams(params any) error {
	decoder := json.NewDecoder(bytes.NewReader(h.Params))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(params); err != nil {
		return Permanent(fmt.Errorf("read the parameters: %w", err))
	}
	return nil
}

// requeueError makes a run wait for a condition.
type requeueError struct {
	after  time.Duration
	reason string
}

func (l *requeueError) Error() string { return l.reason }

// Requeue returns an error that lets the run continue after a wait, because the run waits for a
// condition outside of it. It does not count as a failure, and other runs can use the slot
// meanwhile. The reason becomes the run's Detail.
func Requeue(after time.Duration, reason string) error { return &requeueError{after, reason} }

// Settings are the numeric settings of a runner; tests use shorter times.
type Settings struct {
	// PollInterval is the time between two searches for open runs.
	PollInterval time.Duration
	// LeaseDuration is how long a lease is valid without renewal. After that another process may
	// continue the run.
	LeaseDuration time.Duration
	// SharedSlots is how many runs one process executes at once in addition to one run of each job.
	// The slot of each job prevents that a job with many runs blocks the others.
	SharedSlots int
	// DeferMin is the wait after the first failure. It doubles with each consecutive failure up to
	// DeferMax.
	DeferMin, DeferMax time.Duration
	// PublishRetryInterval is the wait after a failed publication of a run's end.
	PublishRetryInterval time.Duration
	// MetricsInterval is the time between two reads of the metrics from the tables.
	MetricsInterval time.Duration
}

// DefaultSettings are the settings in production.
var DefaultSettings = Settings{PollInterval: time.Second, LeaseDuration: 30 * time.Second, SharedSlots: 1,
	DeferMin: time.Second, DeferMax: time.Minute, PublishRetryInterval: 10 * time.Second,
	MetricsInterval: 10 * time.Second}

// Options are the dependencies of a runner.
type Options struct {
	// Pool is connected as postern_processor. A run may need two of its connections at a time. So
	// the runner executes at most half as many runs at once.
	Pool *pgxpool.Pool
	// ID names this process in leases.
	ID       string
	Settings Settings
	// Jobs are the jobs that this process can execute, by name.
	Jobs map[string]Executor
	// OnEnd is called after the end of a run, so that its publication starts immediately. It may be
	// nil.
	OnEnd func()
	// Metrics counts deferred runs. It may be nil.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Runner executes the open runs of the ledger.
type Runner struct {
	Options
	jobNames []string
	// connectionSlots limits concurrent runs to the number that the pool has connections for.
	connectionSlots chan struct{}
}

// NewRunner returns a runner; Run starts it.
func NewRunner(o Options) *Runner {
	r := &Runner{Options: o, connectionSlots: make(chan struct{}, max(1, o.Pool.Config().MaxConns/2))}
	for name := range o.Jobs {
		r.jobNames = append(r.jobNames, name)
	}
	slices.Sort(r.jobNames)
	return r
}

// Run executes runs until ctx ends. It then releases its open runs, so that another process can
// continue them immediately.
func (r *Runner) Run(ctx context.Context) error {
	g := lifecycle.NewGroup(ctx)
	for _, job := range r.jobNames {
		g.Go("run of "+job, func(ctx context.Context) error { return r.executeInSlot(ctx, job) })
	}
	for range r.Settings.SharedSlots {
		g.Go("run", func(ctx context.Context) error { return r.executeInSlot(ctx, r.jobNames...) })
	}
	return g.Wait()
}

// executeInSlot executes runs of some jobs one after the other.
func (r *Runner) executeInSlot(ctx context.Context, jobs ...string) error {
	return lifecycle.Repeat(ctx, r.Settings.PollInterval, nil, func(err error) {
		r.Logger.Warn("cannot execute runs; retrying", "error", err)
	}, func(ctx context.Context) (busy bool, err error) { return r.executeNext(ctx, jobs) })
}

// Sleep waits for d or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// executeNext executes one open run of some jobs, if there is one.
func (r *Runner) executeNext(ctx context.Context, jobs []string) (busy bool, err error) {
	select {
	case r.connectionSlots <- struct{}{}:
		defer func() { <-r.connectionSlots }()
	case <-ctx.Done():
		return false, nil
	}
	acquireCtx, cancel := withGracePeriod(ctx, "acquire a run")
	lease, err := Acquire(acquireCtx, r.Pool, r.ID, r.Settings.LeaseDuration, jobs...)
	cancel()
	if err != nil || lease == nil {
		return false, err
	}
	log := r.Logger.With("run", lease.Run.ID, "job", lease.Job)
	if lease.Schedule != "" {
		log = log.With("schedule", lease.Schedule)
	}
	if lease.ConsecutiveFailures == 0 {
		level := slog.LevelInfo
		if lease.Detail != "" && !lease.Abandoned { // The run only checks again what it waits for.
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "run leased", "actor", lease.Actor, "reason", lease.Reason, "cursor", lease.Cursor)
	}
	status, err := r.execute(ctx, lease, log)
	stopping := ctx.Err() != nil
	ctx, cancel = lifecycle.WithTimeout(context.WithoutCancel(ctx), "release a run", releaseTimeout)
	defer cancel()
	var requeue *requeueError
	var permanent *permanentError
	switch {
	case errors.Is(err, ErrLeaseLost):
		return true, r.reportLost(ctx, lease, log)
	case errors.As(err, &permanent):
		log.Error("run "+string(permanent.end), "error", err)
		return true, r.endRun(ctx, lease, permanent.end, err.Error())
	case errors.As(err, &requeue) && !stopping:
		return true, lease.requeue(ctx, requeue)
	case err != nil && !stopping:
		return true, r.deferRun(ctx, lease, err, log)
	case err != nil:
	case status == Running:
		log.Info("run done", "counts", lease.Counts)
		return true, r.endRun(ctx, lease, Done, "")
	case status == Done: // the executor has ended the run
		log.Info("run done", "counts", lease.Counts)
		if r.OnEnd != nil {
			r.OnEnd()
		}
	default:
		log.Info("run stopped", "status", status, "cursor", lease.Cursor, "counts", lease.Counts)
	}
	return true, lease.Release(ctx)
}

// releaseTimeout limits the work after a run's executor has returned.
const releaseTimeout = 2 * time.Second

// withGracePeriod returns a context that ends a while after ctx. The server may still execute an
// acquire whose response is lost. That would block the run for the duration of the lease.
func withGracePeriod(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	extended, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(releaseTimeout, func() { cancel(&lifecycle.Timeout{Name: name, After: releaseTimeout}) })
	})
	return extended, func() {
		stop()
		cancel(nil)
	}
}

// reportLost logs why this process stops executing a run: another process has the lease, or an
// operator has stopped the run in the middle of a step.
func (r *Runner) reportLost(ctx context.Context, h *Lease, log *slog.Logger) error {
	now, err := Show(ctx, r.Pool, h.Run.ID)
	switch {
	case err != nil:
		return err
	case now.Status == Running || now.Status == Queued:
		log.Warn("lease of the run lost to another process", "cursor", h.Cursor, "held_by", now.LeaseOwner)
	default:
		log.Info("run stopped", "status", now.Status, "cursor", h.Cursor, "counts", h.Counts)
	}
	return h.Release(ctx)
}

// deferRun defers a run after an error that may pass. It logs only the first of consecutive
// failures. If an operator has stopped the run, the error may be a consequence: for example, the
// database rejects a redaction that is not running.
func (r *Runner) deferRun(ctx context.Context, h *Lease, cause error, log *slog.Logger) error {
	if now, err := Show(ctx, r.Pool, h.Run.ID); err == nil && now.Status != Running {
		log.Info("run stopped", "status", now.Status, "cursor", h.Cursor, "counts", h.Counts, "error", cause)
		return h.Release(ctx)
	}
	failures, err := h.Defer(ctx, cause, r.Settings.DeferMin, r.Settings.DeferMax)
	if failures <= 1 {
		log.Warn("run failed to execute; retrying", "error", cause)
	}
	if r.Metrics != nil {
		r.Metrics.countDeferred(h.Job)
	}
	return err
}

func (r *Runner) endRun(ctx context.Context, h *Lease, status Status, detail string) error {
	err := h.End(ctx, status, detail)
	if err == nil && r.OnEnd != nil {
		r.OnEnd()
	}
	return err
}

// execute executes a run and renews its lease at the same time. It stops if the lease is lost.
func (r *Runner) execute(ctx context.Context, h *Lease, log *slog.Logger) (Status, error) {
	workCtx, stop := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		h.keepAlive(workCtx, stop)
	}()
	status, err := r.Jobs[h.Job](workCtx, h, log)
	if cause := context.Cause(workCtx); err != nil && errors.Is(cause, ErrLeaseLost) {
		err = cause
	}
	stop(nil)
	<-renewed
	return status, err
}

// keepAlive renews the lease three times per lease duration until ctx ends. One step may take
// minutes, so keepAlive ends ctx if another process has the lease or an operator has paused or
// cancelled the run. It ignores errors of a renewal until the next one.
func (h *Lease) keepAlive(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(max(h.duration/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed, err := h.pool.Exec(ctx, renewSQL, h.Job, h.Run.ID, h.owner, h.duration)
		if err == nil && renewed.RowsAffected() == 0 {
			stop(ErrLeaseLost)
			return
		}
	}
}

const renewSQL = `
UPDATE checkpoints c SET lease_until = clock_now() + $4::interval FROM runs r
WHERE c.job = $1 AND c.run = $2 AND c.lease_owner = $3 AND r.run = c.run AND r.status NOT IN ('paused', 'cancelled')`
