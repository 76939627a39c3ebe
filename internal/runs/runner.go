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

// later hands a run back that waits for something.
type later struct {
	after time.Duration
	why   string
}

func (l *later) Error() string { return l.why }

// Later has a run go on after a while, since it waits for what is not its own to do. It is no trouble, and other runs have the place meanwhile. Why becomes its Detail.
func Later(after time.Duration, why string) error { return &later{after, why} }

// Settings are a runner's numbers; tests shorten them.
type Settings struct {
	// Poll is how often the ledger is asked for open runs.
	Poll time.Duration
	// Lease is how long a process may be silent before another goes on with its run.
	Lease time.Duration
	// Slots is how many runs one process carries out at once beside one of each job, so that a job with much to do keeps no other waiting.
	Slots int
	// PutOff is how long a run that met trouble waits for the next try. It doubles each time in a row, up to PutOffMost.
	PutOff, PutOffMost time.Duration
	// Again is how long the end of a run that could not be published waits for the next try.
	Again time.Duration
	// Measure is how often the metrics of runs are read from the tables.
	Measure time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Poll: time.Second, Lease: 30 * time.Second, Slots: 1, PutOff: time.Second, PutOffMost: time.Minute,
	Again: 10 * time.Second, Measure: 10 * time.Second}

// Options are what a runner works with.
type Options struct {
	// Pool is connected as postern_processor. A run may need two of its connections at a time, so that there are at most half as many runs at once.
	Pool *pgxpool.Pool
	// ID names this process in leases.
	ID       string
	Settings Settings
	// Jobs are what this process can carry out, by name.
	Jobs map[string]Carry
	// Ended is called after a run was ended, so that it is told soon; nil: nobody hurries.
	Ended func()
	// Metrics count runs that were put off; nil: nobody counts.
	Metrics *Metrics
	Logger  *slog.Logger
}

// Runner carries out what the ledger asks for.
type Runner struct {
	Options
	names []string
	// room has a place for each run that there are connections for.
	room chan struct{}
}

// NewRunner returns a runner; Run starts it.
func NewRunner(o Options) *Runner {
	r := &Runner{Options: o, room: make(chan struct{}, max(1, o.Pool.Config().MaxConns/2))}
	for name := range o.Jobs {
		r.names = append(r.names, name)
	}
	slices.Sort(r.names)
	return r
}

// Run carries out runs until ctx ends. What is under way then is handed on: any process goes on with it at once.
func (r *Runner) Run(ctx context.Context) error {
	g := lifecycle.NewGroup(ctx)
	for _, job := range r.names {
		g.Go("run of "+job, func(ctx context.Context) error { return r.slot(ctx, job) })
	}
	for range r.Settings.Slots {
		g.Go("run", func(ctx context.Context) error { return r.slot(ctx, r.names...) })
	}
	return g.Wait()
}

// slot carries out one run of some jobs after the other.
func (r *Runner) slot(ctx context.Context, jobs ...string) error {
	troubled := false
	for ctx.Err() == nil {
		busy, err := r.next(ctx, jobs)
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

// next carries out an open run of some jobs, if there is one.
func (r *Runner) next(ctx context.Context, jobs []string) (busy bool, err error) {
	select {
	case r.room <- struct{}{}:
		defer func() { <-r.room }()
	case <-ctx.Done():
		return false, nil
	}
	taking, cancel := outlast(ctx, "take a run")
	hold, err := Take(taking, r.Pool, r.ID, r.Settings.Lease, jobs...)
	cancel()
	if err != nil || hold == nil {
		return false, err
	}
	log := r.Logger.With("run", hold.Run.Run, "job", hold.Job)
	if hold.Schedule != "" {
		log = log.With("schedule", hold.Schedule)
	}
	if hold.Troubles == 0 {
		level := slog.LevelInfo
		if hold.Detail != "" && !hold.Abandoned { // it has said what it waits for, and asks now and then
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "run taken", "who", hold.Who, "reason", hold.Reason, "cursor", hold.Cursor)
	}
	status, err := r.keep(ctx, hold, log)
	stopping := ctx.Err() != nil
	ctx, cancel = lifecycle.WithTimeout(context.WithoutCancel(ctx), "hand on a run", handOnWithin)
	defer cancel()
	var wait *later
	switch {
	case errors.Is(err, ErrLost):
		return true, r.lost(ctx, hold, log)
	case errors.As(err, new(*refusal)):
		log.Error("run failed", "error", err)
		return true, r.end(ctx, hold, Failed, err.Error())
	case errors.As(err, &wait) && !stopping:
		return true, hold.handBack(ctx, wait)
	case err != nil && !stopping:
		return true, r.putOff(ctx, hold, err, log)
	case err != nil:
	case status == Running:
		log.Info("run done", "counts", hold.Counts)
		return true, r.end(ctx, hold, Done, "")
	case status == Done: // it has been ended with the last of its work
		log.Info("run done", "counts", hold.Counts)
		if r.Ended != nil {
			r.Ended()
		}
	default:
		log.Info("run stopped", "status", status, "cursor", hold.Cursor, "counts", hold.Counts)
	}
	return true, hold.Release(ctx)
}

// handOnWithin bounds what is still done of a run at a stop.
const handOnWithin = 2 * time.Second

// outlast is a context that ends a while after ctx: a take whose answer nobody waits for may still be carried out, and would keep the run from everybody for as long as its lease.
func outlast(ctx context.Context, name string) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(handOnWithin, func() { cancel(&lifecycle.Timeout{Name: name, After: handOnWithin}) })
	})
	return longer, func() {
		stop()
		cancel(nil)
	}
}

// lost tells why this process does not go on with a run: another has it, or a person has stopped it in the middle of a step.
func (r *Runner) lost(ctx context.Context, h *Hold, log *slog.Logger) error {
	now, err := Show(ctx, r.Pool, h.Run.Run)
	switch {
	case err != nil:
		return err
	case now.Status == Running || now.Status == Waiting:
		log.Warn("run lost to another process", "cursor", h.Cursor, "held_by", now.HeldBy)
	default:
		log.Info("run stopped", "status", now.Status, "cursor", h.Cursor, "counts", h.Counts)
	}
	return h.Release(ctx)
}

// putOff leaves a run that met trouble of our own for later, and says so once until it gets on. What a person has stopped meets what it meets since it was stopped: the database refuses
// a redaction that is not running.
func (r *Runner) putOff(ctx context.Context, h *Hold, why error, log *slog.Logger) error {
	if now, err := Show(ctx, r.Pool, h.Run.Run); err == nil && now.Status != Running {
		log.Info("run stopped", "status", now.Status, "cursor", h.Cursor, "counts", h.Counts, "error", why)
		return h.Release(ctx)
	}
	times, err := h.PutOff(ctx, why, r.Settings.PutOff, r.Settings.PutOffMost)
	if times <= 1 {
		log.Warn("run not carried out; tried again", "error", why)
	}
	if r.Metrics != nil {
		r.Metrics.putOff(h.Job)
	}
	return err
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

// keepAlive renews the lease every third of it until ctx ends, and ends ctx where the lease is another's, or a person has paused or cancelled the run: one step may take minutes. Trouble
// is left to the next time.
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

const renewSQL = `
UPDATE checkpoints c SET leased_until = clock_now() + $4::interval FROM runs r
WHERE c.job = $1 AND c.run = $2 AND c.leased_by = $3 AND r.run = c.run AND r.status NOT IN ('paused', 'cancelled')`
