// Package rebuild computes the mirror of a source again from the log: it stages objects in a shadow
// table, compares them with the live ones, and swaps them in batches or discards them. Operators
// request rebuilds, and processors execute them. It never changes live objects before the swap.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Job is the name of rebuilds in the table of runs.
const Job = "rebuild"

// Params are the parameters of a rebuild.
type Params struct {
	// Source is the number of the source whose objects are rebuilt.
	Source int32 `json:"source"`
	// Type is the type of the objects, "" for all.
	Type string `json:"type"`
	// Swap replaces the live objects as soon as the new ones are staged. It may be set later: until
	// then the run awaits the operator's decision.
	Swap bool `json:"swap"`
	// AcceptDead says that an operator wants the swap although events that were applied live are
	// dead in the rebuild.
	AcceptDead bool `json:"seen,omitzero"`
	// Input is the operator's input as written, by parameter.
	Input map[string]string `json:"input"`
}

// Settings are the limits and intervals of a rebuild. Tests shorten them.
type Settings struct {
	// Chunk bounds the events between two checkpoints, Rows the rows that one statement copies or
	// clears.
	Chunk, Rows int
	// Batch bounds the objects that one transaction of a swap locks and replaces. Live events of
	// these objects wait for it.
	Batch int
	// MaxPending is how many events may arrive during a catch-up without another one.
	MaxPending int64
	// RetryPause is the pause before failed events are tried again.
	RetryPause time.Duration
	// ResendAfter is the processor's setting of this name. A swap makes its rows of the outbox this
	// old, so that the next resend publishes them.
	ResendAfter time.Duration
}

// DefaultSettings are the shipped settings.
var DefaultSettings = Settings{Chunk: 2000, Rows: 5000, Batch: 100, MaxPending: 1000,
	RetryPause: time.Second, ResendAfter: 30 * time.Second}

// Runner executes rebuilds.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool     *pgxpool.Pool
	Applier  *apply.Applier
	Settings Settings
	// onStep is called before each step with its name and may return an error to end the run. Only
	// tests set it.
	onStep func(name string) error
}

// beforeStep calls onStep, if it is set.
func (r *Runner) beforeStep(name string) error {
	if r.onStep == nil {
		return nil
	}
	return r.onStep(name)
}

// work is one rebuild that this process executes.
type work struct {
	*Runner
	lease  *runs.Lease
	params Params
	log    *slog.Logger
	// single says that the first events are tried one by one, because one of them may have ended
	// the process of the previous lease owner.
	single bool
	// failed are the events that failed in the run when its swap began.
	failed []int64
}

// Execute stages the events that the run has not staged yet. Then it swaps if requested, or pauses
// the run until the operator decides. A run that has replaced objects does not fail, because the
// others would stay as the old rule made them: it pauses. It is a runs.Executor.
func (r *Runner) Execute(ctx context.Context, lease *runs.Lease, log *slog.Logger) (runs.Status, error) {
	status, err := r.execute(ctx, lease, log)
	// Another rebuild begins with the retained objects, so this one must not remain open.
	if _, replaced := lease.Counts[Swapped]; err != nil && replaced && !errors.Is(err, errLogDropped) {
		err = runs.Pause(err, fmt.Sprintf("The run has replaced objects already, so it is paused: remove the cause, "+
			"then run postern runs resume %[1]d, or postern rebuild swap %[1]d to accept dead events", lease.Run.ID))
	}
	return status, err
}

func (r *Runner) execute(ctx context.Context, lease *runs.Lease, log *slog.Logger) (runs.Status, error) {
	w := &work{Runner: r, lease: lease, log: log, single: lease.Abandoned}
	if err := w.readParams(); err != nil {
		return "", err
	}
	status, err := w.begin(ctx)
	for err == nil && status == runs.Running {
		if status, err = w.catchUp(ctx); err != nil || status != runs.Running {
			break
		}
		if w.params.Swap {
			return w.swap(ctx)
		}
		if status, err = lease.AwaitDecision(ctx); err == nil && status == runs.Running {
			err = w.readParams()
		}
	}
	return status, err
}

// readParams reads the current parameters.
func (w *work) readParams() error {
	w.params = Params{}
	if err := w.lease.DecodeParams(&w.params); err != nil {
		return err
	}
	return w.checkSource()
}

// checkSource returns an error if the source is not configured here, so that its events cannot be
// read.
func (w *work) checkSource() error {
	if name, ok := w.Applier.CachedSource(w.params.Source); !ok {
		return runs.Permanent(fmt.Errorf("source %q is not in the configuration of the processor that executes "+
			"the run: add it there and start the rebuild again", name))
	}
	return nil
}

// begin clears the staged objects of older rebuilds, records the start of the log, and copies the
// retained objects of dropped partitions. After an interruption it starts again.
func (w *work) begin(ctx context.Context) (runs.Status, error) {
	if w.lease.Cursor == 0 {
		if err := w.clear(ctx); err != nil {
			return "", err
		}
		oldest, err := events.OldestID(ctx, w.Pool)
		if err != nil {
			return "", err
		}
		if status, err := w.lease.Advance(ctx, max(oldest-1, 1)); err != nil || status != runs.Running {
			return status, err
		}
	}
	if w.lease.Bound == 0 {
		if err := w.copyRetained(ctx); err != nil {
			return "", err
		}
	}
	return runs.Running, nil
}

// catchUp stages the log up to a bound, and then up to newer bounds, until few events arrive in
// between.
func (w *work) catchUp(ctx context.Context) (runs.Status, error) {
	for {
		before := w.lease.Counts[Processed]
		if status, err := w.stageLog(ctx); err != nil || status != runs.Running {
			return status, err
		}
		if w.lease.Counts[Processed]-before <= w.Settings.MaxPending {
			return runs.Running, nil
		}
	}
}

// stageLog stages the log up to the run's bound, or up to a new one if that is reached.
func (w *work) stageLog(ctx context.Context) (runs.Status, error) {
	lease := w.lease
	if lease.Cursor >= lease.Bound {
		bound, err := events.FreezeBound(ctx, w.Pool)
		if err != nil {
			return "", err
		}
		if err := lease.SetBound(ctx, bound); err != nil {
			return "", err
		}
	}
	match := func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) ([]int64, int64, error) {
		return events.Match(ctx, pool, &events.Filter{Source: w.params.Source}, after, bound)
	}
	spec := apply.Walk{Match: match, After: lease.Cursor, Bound: lease.Bound, Chunk: w.Settings.Chunk}
	for c, err := range w.Applier.ReadAhead(ctx, spec) {
		if err != nil {
			return "", err
		}
		if status, err := w.stageChunk(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
		w.single = w.single && len(c.IDs) == 0
	}
	return runs.Running, nil
}

// stageChunk stages some events and moves the cursor past them.
func (w *work) stageChunk(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	if len(c.IDs) > 0 {
		counts, status, err := w.apply(ctx, w.target(), c, w.single)
		if err != nil || status != runs.Running {
			return status, err
		}
		for status, n := range counts {
			w.lease.Counts[string(status)] += n
			w.lease.Counts[Processed] += n
		}
	}
	return w.advance(ctx, c.From, c.End)
}

// errLogDropped says that the log has dropped events that were not staged yet.
var errLogDropped = errors.New("partitions of the log were dropped before the rebuild had read them: start the " +
	"rebuild again, it begins with the retained objects")

// droppedSQL finds a partition between two ids that left the log and was not part of the retained
// objects when the run began.
const droppedSQL = `
SELECT EXISTS (SELECT FROM dropped_partitions d JOIN runs r ON r.run = $1 WHERE d.ready_at >= r.started_at
	AND d.id_to > $2::bigint + 1 AND d.id_from <= $3 AND (d.dropped_at IS NOT NULL
  OR NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass
  	AND NOT i.inhdetachpending AND p.relname = d.name)))`

// advance moves the cursor, unless events up to it may have been dropped before they were read.
func (w *work) advance(ctx context.Context, after, cursor int64) (runs.Status, error) {
	if err := w.checkDropped(ctx, after, cursor); err != nil {
		return "", err
	}
	return w.lease.Advance(ctx, cursor)
}

// checkDropped returns an error if events after an id and up to another may have been dropped
// before they were read.
func (w *work) checkDropped(ctx context.Context, after, to int64) error {
	oldest, err := events.OldestID(ctx, w.Pool)
	if err != nil {
		return err
	}
	dropped := oldest-1 > after
	if !dropped {
		if err := w.Pool.QueryRow(ctx, droppedSQL, w.lease.Run.ID, after, to).Scan(&dropped); err != nil {
			return fmt.Errorf("find dropped partitions: %w", err)
		}
	}
	if dropped {
		return runs.Permanent(errLogDropped)
	}
	return nil
}

// target returns the target for staging events.
func (w *work) target() apply.Target {
	return apply.Target{Run: w.lease.Run.ID, Staging: &apply.Staging{Table: versioning.Staged, Type: w.params.Type,
		Guard: w.lease.Guard}}
}

// Processed is the count of all events that have an outcome in the run.
const Processed = "processed"
