// Package replay has stored events applied again: runs over the log that a person asked for, carried out beside the live events by any
// processor that has a hand free. A replay goes through the processor's own function and never through the stream.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
)

// Job is what replays are called in the ledger of runs.
const Job = "replay"

// Order is what a replay is asked to do.
type Order struct {
	// Filter chooses the events.
	Filter events.Filter `json:"filter"`
	// Words are the filter as the person wrote it, by parameter.
	Words map[string]string `json:"words"`
	// Rate bounds the events per second, so that live traffic keeps its latency; 0: as fast as it goes.
	Rate float64 `json:"rate"`
	// Publish: the events are published to postern.replays for the user's own consumers, and not applied; they get no outcomes.
	Publish bool `json:"publish,omitzero"`
	// Mode says what happens again outside of the mirror; "" is State.
	Mode Mode `json:"mode,omitzero"`
}

// Mode says which side effects of an event happen when it is applied again.
type Mode string

// The modes.
const (
	// State: none, also of what the run changes.
	State Mode = "state"
	// Missing: those of what the run changes that have no entry in the ledger of effects. What was changed before is not changed again, and has none.
	Missing Mode = "missing"
	// Force: as Missing, and what had followed from the events happens again. Such a run is only proposed, until a person approves it.
	Force Mode = "force"
)

// effects says whether what a run of the mode changes has effects.
func (m Mode) effects() bool { return m == Missing || m == Force }

// DefaultChunk is the most events between two checkpoints.
const DefaultChunk = 2000

// Runner carries out replays.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool      *pgxpool.Pool
	Processor *processor.Processor
	// Chunk bounds the events between two checkpoints.
	Chunk int
	// Again is how long to wait after trouble with the stream; 0: a second.
	Again time.Duration
}

// Carry walks the log from the run's checkpoint to its bound; it is a runs.Carry.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
	var order Order
	if err := decode(h.Asked, &order); err != nil {
		return "", err
	}
	if err := r.freeze(ctx, h); err != nil {
		return "", err
	}
	w := &walk{Runner: r, hold: h, alone: h.Abandoned, log: log, rate: order.Rate, to: processor.Target{Run: h.Run.Run, Effects: order.Mode.effects(), Log: log}}
	w.match = func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) ([]int64, int64, error) {
		return events.Match(ctx, pool, &order.Filter, after, bound)
	}
	w.do = w.apply
	if order.Mode == Force {
		w.do = w.force
	}
	if order.Publish {
		w.do, w.unread = w.publish, true // which reads whole bodies
	} else if err := r.reads(ctx, order.Filter.Source); err != nil {
		return "", err
	}
	return w.walk(ctx)
}

// reads refuses a run for one source that is not configured here, all of whose events would fail. Where other sources are chosen too, only those events do,
// and can be tried again.
func (r *Runner) reads(ctx context.Context, source int32) error {
	if source == 0 {
		return nil
	}
	name, ok, err := r.Processor.Reads(ctx, source)
	if err == nil && !ok {
		err = runs.Refuse(fmt.Errorf("source %q is not in the configuration of the processor that took the run: add it there, and ask again", name))
	}
	return err
}

// decode reads an order. One of a later release may mean something else by what is unknown here.
func decode(asked json.RawMessage, order any) error {
	d := json.NewDecoder(bytes.NewReader(asked))
	d.DisallowUnknownFields()
	if err := d.Decode(order); err != nil {
		return runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
	}
	return nil
}

// freeze gives a run that has none the bound up to which the log is complete.
func (r *Runner) freeze(ctx context.Context, h *runs.Hold) error {
	if h.Bound != 0 {
		return nil
	}
	bound, err := events.FreezeBound(ctx, r.Pool)
	if err != nil {
		return err
	}
	return h.Freeze(ctx, bound)
}

// walk is one run on its way.
type walk struct {
	*Runner
	hold *runs.Hold
	log  *slog.Logger
	// match returns the next chosen events and how far it has looked.
	match func(ctx context.Context, pool *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error)
	// do does with some events what the order says, and counts them.
	do func(ctx context.Context, c *processor.Chunk) (runs.Status, error)
	// unread: it wants the ids alone.
	unread bool
	// to is what events are applied under.
	to   processor.Target
	rate float64
	// alone: the next events are tried by themselves.
	alone bool
	// choosesOnce: match may not choose again what do has been at.
	choosesOnce bool
}

func (w *walk) walk(ctx context.Context) (runs.Status, error) {
	h := w.hold
	if ids := h.Hand; len(ids) > 0 {
		c, err := w.Processor.ReadChunk(ctx, ids)
		if err != nil {
			return "", err
		}
		c.End = ids[len(ids)-1]
		if status, err := w.step(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
	}
	for c, err := range w.Processor.Ahead(ctx, processor.Walk{Match: w.match, After: h.Cursor, Bound: h.Bound, Chunk: w.chunk(w.rate), Unread: w.unread}) {
		if err != nil {
			return "", err
		}
		if status, err := w.step(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

// chunk is how many events lie between two checkpoints: with a low rate fewer, so that a second's worth is the most.
func (r *Runner) chunk(rate float64) int {
	if rate <= 0 {
		return r.Chunk
	}
	return max(1, min(r.Chunk, int(rate)))
}

// step does with some events what the order says and moves the checkpoint behind them.
func (w *walk) step(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	began := time.Now()
	if len(c.IDs) > 0 {
		if status, err := w.work(ctx, c); err != nil || status != runs.Running {
			return status, err
		}
		w.alone = false
	}
	status, err := w.hold.Advance(ctx, c.End)
	if rate := w.rate; rate > 0 && err == nil && status == runs.Running {
		runs.Pause(ctx, time.Duration(float64(len(c.IDs))/rate*float64(time.Second))-time.Since(began))
	}
	return status, cmp.Or(err, context.Cause(ctx))
}

func (w *walk) work(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	if w.choosesOnce {
		if err := w.hold.Keep(ctx, c.IDs); err != nil {
			return "", err
		}
	}
	return w.do(ctx, c)
}

func (w *walk) apply(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	var found atomic.Int64
	to := w.to
	to.Found = func(n int) { found.Add(int64(n)) }
	counts, err := w.Processor.ApplyChunk(ctx, to, c, w.alone)
	if err != nil {
		return "", err
	}
	if n := found.Load(); n > 0 { // they are among those of counts
		w.hold.Counts[Deduplicated] += n
	}
	for status, n := range counts {
		w.count(string(status), n)
	}
	return runs.Running, nil
}

func (w *walk) count(as string, n int64) {
	w.hold.Counts[as] += n
	w.hold.Counts[Processed] += n
}

// publish waits for a stream that is away, for as long as the run is not paused or cancelled. What was published before that comes again.
func (w *walk) publish(ctx context.Context, c *processor.Chunk) (runs.Status, error) {
	for told := false; ; told = true {
		n, err := w.Processor.PublishStored(ctx, w.hold.Run.Run, c.IDs)
		if err == nil {
			w.count(Published, n)
			return runs.Running, nil
		}
		if !told && ctx.Err() == nil {
			w.log.Warn("events not published; tried again", "error", err)
		}
		runs.Pause(ctx, w.again())
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
}

// again is when to publish again after trouble.
func (w *walk) again() time.Duration { return cmp.Or(w.Again, time.Second) }

// Counts of a run beside those of outcomes. Processed is of all its events, and Published of those it published.
const (
	Processed = "processed"
	Published = "published"
	// Deduplicated is how many of all its events had a final outcome of the run already when they came to be applied, as where a process ended between their
	// outcomes and the checkpoint: those were passed over.
	Deduplicated = "deduplicated"
)
