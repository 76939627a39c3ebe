// Package replay applies stored events again. Operators request replays and retries as runs, and
// any processor with capacity executes them alongside live events. It applies events with the
// processor's own functions and never reads them from the stream.
package replay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// Job is the name of replays in the table of runs.
const Job = "replay"

// Params are the parameters of a replay.
type Params struct {
	// Filter selects the events.
	Filter events.Filter `json:"filter"`
	// Input is the filter as the operator wrote it, by parameter.
	Input map[string]string `json:"input"`
	// Rate bounds the events per second, so that live traffic keeps its latency. 0 is no limit.
	Rate float64 `json:"rate"`
	// Publish says that the events are published to postern.replays for the user's own consumers.
	// They are not applied and get no outcomes.
	Publish bool `json:"publish,omitzero"`
	// Mode says which side effects happen outside of the mirror. "" is State.
	Mode Mode `json:"mode,omitzero"`
}

// Mode says which effects of an event happen when it is applied again.
type Mode string

// The modes.
const (
	// State: no effects, not even those of changes that the run makes.
	State Mode = "state"
	// Missing: effects of the run's changes that are not in the ledger of effects. A change that
	// was made before is not made again, and plans no effect.
	Missing Mode = "missing"
	// Force: as Missing, and the effects that the events had before happen again. Such a run starts
	// only after an operator approves it.
	Force Mode = "force"
)

// effects reports whether the changes of a run with this mode plan effects.
func (m Mode) effects() bool { return m == Missing || m == Force }

// DefaultChunk is the maximum of events between two checkpoints.
const DefaultChunk = 2000

// Runner executes replays.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool    *pgxpool.Pool
	Applier *apply.Applier
	// Chunk bounds the events between two checkpoints.
	Chunk int
	// RetryPause is the wait after a failure of the stream. 0 is one second.
	RetryPause time.Duration
}

// Execute walks the log from the run's checkpoint to its bound. It is a runs.Executor.
func (r *Runner) Execute(ctx context.Context, lease *runs.Lease, log *slog.Logger) (runs.Status, error) {
	var params Params
	if err := lease.DecodeParams(&params); err != nil {
		return "", err
	}
	if err := r.freeze(ctx, lease); err != nil {
		return "", err
	}
	w := &execution{Runner: r, lease: lease, single: lease.Abandoned, log: log, rate: params.Rate,
		to: apply.Target{Run: lease.Run.ID, Effects: params.Mode.effects()}}
	w.match = func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) ([]int64, int64, error) {
		return events.Match(ctx, pool, &params.Filter, after, bound)
	}
	w.do = w.apply
	if params.Mode == Force {
		w.do = w.applyForced
	}
	if params.Publish {
		w.do, w.idsOnly = w.publish, true // publish reads the full bodies itself
	} else if err := r.checkSource(ctx, params.Filter.Source); err != nil {
		return "", err
	}
	return w.run(ctx)
}

// checkSource returns an error for a run of one source that is not configured here, because all its
// events would fail. If the run also selects other sources, only the events of this source fail,
// and they can be retried.
func (r *Runner) checkSource(ctx context.Context, source int32) error {
	if source == 0 {
		return nil
	}
	name, ok, err := r.Applier.FindSource(ctx, source)
	if err == nil && !ok {
		err = runs.Permanent(fmt.Errorf("source %q is not in the configuration of the processor that executes the "+
			"run: add it there, and request the run again", name))
	}
	return err
}

// freeze sets the bound of a run that has none: the id up to which the log is complete.
func (r *Runner) freeze(ctx context.Context, lease *runs.Lease) error {
	if lease.Bound != 0 {
		return nil
	}
	bound, err := events.FreezeBound(ctx, r.Pool)
	if err != nil {
		return err
	}
	return lease.SetBound(ctx, bound)
}

// matchFunc returns the next selected events, and the end of the range that it has read.
type matchFunc = func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error)

// execution is one run that this process executes.
type execution struct {
	*Runner
	lease *runs.Lease
	log   *slog.Logger
	match matchFunc
	// do processes some events and counts them.
	do func(ctx context.Context, c *apply.Chunk) (runs.Status, error)
	// idsOnly says that do needs only the ids.
	idsOnly bool
	// to is the target for applying events.
	to   apply.Target
	rate float64
	// single says that the next events are tried one by one.
	single bool
	// recordsChunk says that each chunk is recorded before do processes it, because match may not
	// select these events again afterwards.
	recordsChunk bool
}

func (w *execution) run(ctx context.Context) (runs.Status, error) {
	lease := w.lease
	if ids := lease.InProgress; len(ids) > 0 {
		c, err := w.Applier.ReadChunk(ctx, ids)
		if err != nil {
			return "", err
		}
		c.End = ids[len(ids)-1]
		if status, err := w.processChunk(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
	}
	for c, err := range w.Applier.ReadAhead(ctx, apply.Walk{Match: w.match, After: lease.Cursor,
		Bound: lease.Bound, Chunk: w.chunk(w.rate), IDsOnly: w.idsOnly}) {
		if err != nil {
			return "", err
		}
		if status, err := w.processChunk(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

// chunk returns the number of events between two checkpoints. With a low rate it is at most the
// events of one second.
func (r *Runner) chunk(rate float64) int {
	if rate <= 0 {
		return r.Chunk
	}
	return max(1, min(r.Chunk, int(rate)))
}

// processChunk processes some events and moves the checkpoint past them.
func (w *execution) processChunk(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	began := time.Now()
	if len(c.IDs) > 0 {
		if status, err := w.doChunk(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
		w.single = false
	}
	status, err := w.lease.Advance(ctx, c.End)
	if rate := w.rate; rate > 0 && err == nil && status == runs.Running {
		runs.Sleep(ctx, time.Duration(float64(len(c.IDs))/rate*float64(time.Second))-time.Since(began))
	}
	return status, cmp.Or(err, context.Cause(ctx))
}

func (w *execution) doChunk(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	if w.recordsChunk {
		if err := w.lease.MarkInProgress(ctx, c.IDs); err != nil {
			return "", err
		}
	}
	return w.do(ctx, c)
}

func (w *execution) apply(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	counts, err := w.Applier.WithLogger(w.log).ApplyChunk(ctx, w.to, c, w.single)
	if err != nil {
		return "", err
	}
	if n := counts.AlreadyFinal; n > 0 { // these events are included in the counts of outcomes
		w.lease.Counts[Deduplicated] += n
	}
	for status, n := range counts.Outcomes {
		w.count(string(status), n)
	}
	return runs.Running, nil
}

func (w *execution) count(as string, n int64) {
	w.lease.Counts[as] += n
	w.lease.Counts[Processed] += n
}

// publish retries while the stream is unavailable, until the run is paused or cancelled. A retry
// publishes all events of the chunk again.
func (w *execution) publish(ctx context.Context, c *apply.Chunk) (runs.Status, error) {
	for logged := false; ; logged = true {
		n, err := w.Applier.PublishStored(ctx, w.lease.Run.ID, c.IDs)
		if err == nil {
			w.count(Published, n)
			return runs.Running, nil
		}
		if !logged && ctx.Err() == nil {
			w.log.Warn("events not published; retrying", "error", err)
		}
		runs.Sleep(ctx, w.retryPause())
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
}

// retryPause returns the wait after a failure of the stream.
func (w *execution) retryPause() time.Duration { return cmp.Or(w.RetryPause, time.Second) }

// Counts of a run in addition to the counts of outcomes. Processed counts all events of the run,
// Published the events that it published.
const (
	Processed = "processed"
	Published = "published"
	// Deduplicated counts the events that already had a final outcome of the run when they were
	// applied. This happens when a process ends between their outcomes and the checkpoint. They
	// were skipped.
	Deduplicated = "deduplicated"
)
