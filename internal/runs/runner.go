package runs

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// Carry carries a run out from its checkpoint on, and returns how it stands then: Running where all is done, Done where it has said so itself. An error that Refuse made
// ends the run as Failed; any other is trouble of our own, and the run goes on later from its checkpoint. The logger names the run.
type Carry func(ctx context.Context, h *Hold, log *slog.Logger) (Status, error)

// refusal is the fault of an order that no process can carry out.
type refusal struct{ error }

func (r *refusal) Unwrap() error { return r.error }

// Refuse makes an error the run's own: trying again would not help.
func Refuse(err error) error { return &refusal{err} }

// Settings are a runner's numbers; tests shorten them.
type Settings struct {
	// Poll is how often the ledger is asked for open runs.
	Poll time.Duration
	// Lease is how long a process may be silent before another goes on with its run.
	Lease time.Duration
	// Slots is how many runs one process carries out at once.
	Slots int
	// Again is how long the end of a run that could not be published waits for the next try.
	Again time.Duration
	// Measure is how often the metrics of runs are read from the tables.
	Measure time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Poll: time.Second, Lease: 30 * time.Second, Slots: 2, Again: 10 * time.Second, Measure: 10 * time.Second}

// Options are what a runner works with.
type Options struct {
	Pool *pgxpool.Pool
	// ID names this process in leases.
	ID       string
	Settings Settings
	// Jobs are what this process can carry out, by name.
	Jobs map[string]Carry
	// Ended is called after a run was ended, so that it is told soon; nil: nobody hurries.
	Ended  func()
	Logger *slog.Logger
}

// Runner carries out what the ledger asks for.
type Runner struct {
	Options
	names []string
}

// NewRunner returns a runner; Run starts it.
func NewRunner(o Options) *Runner {
	r := &Runner{Options: o}
	for name := range o.Jobs {
		r.names = append(r.names, name)
	}
	slices.Sort(r.names)
	return r
}

// Run carries out runs until ctx ends. What is under way then is handed on: any process goes on with it at once.
func (r *Runner) Run(ctx context.Context) error {
	g := lifecycle.NewGroup(ctx)
	for range r.Settings.Slots {
		g.Go("run", r.slot)
	}
	return g.Wait()
}

// slot carries out one run after the other.
func (r *Runner) slot(ctx context.Context) error {
	troubled := false
	for ctx.Err() == nil {
		busy, err := r.next(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			r.Logger.Warn("runs not carried out; tried again", "error", err)
		}
		if troubled = err != nil; troubled || !busy {
			Pause(ctx, r.Settings.Poll)
		}
	}
	return nil
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// next carries out an open run, if there is one.
func (r *Runner) next(ctx context.Context) (busy bool, err error) {
	hold, err := Take(ctx, r.Pool, r.ID, r.Settings.Lease, r.names...)
	if err != nil || hold == nil {
		return false, err
	}
	log := r.Logger.With("run", hold.Run.Run, "job", hold.Job)
	if hold.Schedule != "" {
		log = log.With("schedule", hold.Schedule)
	}
	log.Info("run taken", "who", hold.Who, "reason", hold.Reason, "cursor", hold.Cursor)
	status, err := r.keep(ctx, hold, log)
	end, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "hand on a run", 2*time.Second)
	defer cancel()
	switch {
	case errors.Is(err, ErrLost):
		log.Warn("run lost to another process", "cursor", hold.Cursor)
		return true, nil
	case errors.As(err, new(*refusal)):
		log.Error("run failed", "error", err)
		return true, r.end(end, hold, Failed, err.Error())
	case err != nil: // trouble of our own, or a stop: the run goes on later
		return true, errors.Join(err, hold.Release(end))
	case status == Running:
		log.Info("run done", "counts", hold.Counts)
		return true, r.end(end, hold, Done, "")
	case status == Done: // it has been ended with the last of its work
		log.Info("run done", "counts", hold.Counts)
		if r.Ended != nil {
			r.Ended()
		}
		return true, hold.Release(end)
	}
	log.Info("run stopped", "status", status, "cursor", hold.Cursor, "counts", hold.Counts)
	return true, hold.Release(end)
}

func (r *Runner) end(ctx context.Context, h *Hold, status Status, detail string) error {
	err := h.End(ctx, status, detail)
	if err == nil && r.Ended != nil {
		r.Ended()
	}
	return err
}

// keep carries a run out and renews its lease meanwhile. Who has lost it stops.
func (r *Runner) keep(ctx context.Context, h *Hold, log *slog.Logger) (Status, error) {
	work, stop := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		h.keepAlive(work, stop)
	}()
	status, err := r.Jobs[h.Job](work, h, log)
	if cause := context.Cause(work); err != nil && errors.Is(cause, ErrLost) {
		err = cause
	}
	stop(nil)
	<-renewed
	return status, err
}

// keepAlive renews the lease every third of it until ctx ends, and ends ctx where the lease is another's. Trouble is left to the next time.
func (h *Hold) keepAlive(ctx context.Context, stop context.CancelCauseFunc) {
	tick := time.NewTicker(max(h.lease/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		renewed, err := h.pool.Exec(ctx, renewSQL, h.Job, h.Run.Run, h.by, h.lease)
		if err == nil && renewed.RowsAffected() == 0 {
			stop(ErrLost)
			return
		}
	}
}

const renewSQL = `UPDATE checkpoints SET leased_until = clock_now() + $4::interval WHERE job = $1 AND run = $2 AND leased_by = $3`
