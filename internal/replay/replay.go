// Package replay has stored events applied again: runs over the log that a person asked for, carried out beside the live events by any
// processor that has a hand free. A replay goes through the processor's own function and never through the stream.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
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
}

// Settings are the runner's numbers; tests shorten them.
type Settings struct {
	// Poll is how often the ledger is asked for open runs.
	Poll time.Duration
	// Lease is how long a process may be silent before another goes on with its run.
	Lease time.Duration
	// Chunk bounds the events between two checkpoints.
	Chunk int
	// Slots is how many runs one process carries out at once.
	Slots int
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Poll: time.Second, Lease: 30 * time.Second, Chunk: 1000, Slots: 2}

// Options are what a runner works with.
type Options struct {
	// Pool is connected as postern_processor.
	Pool      *pgxpool.Pool
	Processor *processor.Processor
	// ID names this process in leases.
	ID       string
	Settings Settings
	Logger   *slog.Logger
}

// Runner carries out replays.
type Runner struct{ Options }

// New returns a runner; Run starts it.
func New(o Options) *Runner { return &Runner{o} }

// Run carries out what the ledger asks for until ctx ends. What is under way then is handed on: any process goes on with it at once.
func (r *Runner) Run(ctx context.Context) error {
	g := lifecycle.NewGroup(ctx)
	for range r.Settings.Slots {
		g.Go("replay", r.slot)
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
			pause(ctx, r.Settings.Poll)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// next carries out an open run, if there is one.
func (r *Runner) next(ctx context.Context) (busy bool, err error) {
	hold, err := runs.Take(ctx, r.Pool, r.ID, r.Settings.Lease, Job)
	if err != nil || hold == nil {
		return false, err
	}
	log := r.Logger.With("run", hold.Run.Run, "job", hold.Job)
	log.Info("run taken", "who", hold.Who, "reason", hold.Reason, "cursor", hold.Cursor)
	status, err := r.carry(ctx, hold)
	end, cancel := lifecycle.WithTimeout(context.WithoutCancel(ctx), "hand on a run", 2*time.Second)
	defer cancel()
	switch {
	case errors.Is(err, runs.ErrLost):
		log.Warn("run lost to another process", "cursor", hold.Cursor)
		return true, nil
	case errors.As(err, new(*refusal)):
		log.Error("run failed", "error", err)
		return true, hold.End(end, runs.Failed, err.Error())
	case err != nil: // trouble of our own, or a stop: the run goes on later
		return true, errors.Join(err, hold.Release(end))
	case status == runs.Running:
		log.Info("run done", "counts", hold.Counts)
		return true, hold.End(end, runs.Done, "")
	}
	log.Info("run stopped", "status", status, "cursor", hold.Cursor)
	return true, hold.Release(end)
}

// refusal is the fault of an order that no process can carry out.
type refusal struct{ error }

// carry walks the log from the run's checkpoint to its bound. It returns how the run stands: Running where all is done.
func (r *Runner) carry(ctx context.Context, h *runs.Hold) (runs.Status, error) {
	var order Order
	asked := json.NewDecoder(bytes.NewReader(h.Asked))
	asked.DisallowUnknownFields() // an order of a later release may mean something else by what is unknown here
	if err := asked.Decode(&order); err != nil {
		return "", &refusal{fmt.Errorf("read what was asked for: %w", err)}
	}
	if h.Bound == 0 {
		bound, err := events.FreezeBound(ctx, r.Pool)
		if err != nil {
			return "", err
		}
		if err := h.Freeze(ctx, bound); err != nil {
			return "", err
		}
	}
	alone := h.Abandoned
	for h.Cursor < h.Bound {
		ids, end, err := events.Match(ctx, r.Pool, &order.Filter, h.Cursor, h.Bound)
		if err != nil {
			return "", err
		}
		for len(ids) > 0 {
			n := min(len(ids), r.chunk(order.Rate))
			status, err := r.step(ctx, h, ids[:n], alone, order.Rate)
			if err != nil || status != runs.Running {
				return status, err
			}
			ids, alone = ids[n:], false
		}
		if status, err := h.Advance(ctx, end); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

// chunk is how many events lie between two checkpoints: with a low rate fewer, so that a second's worth is the most.
func (r *Runner) chunk(rate float64) int {
	if rate <= 0 {
		return r.Settings.Chunk
	}
	return max(1, min(r.Settings.Chunk, int(rate)))
}

// step applies some events and moves the checkpoint behind them.
func (r *Runner) step(ctx context.Context, h *runs.Hold, ids []int64, alone bool, rate float64) (runs.Status, error) {
	began := time.Now()
	counts, err := r.Processor.ApplyStored(ctx, h.Run.Run, ids, alone)
	if err != nil {
		return "", err
	}
	for status, n := range counts {
		h.Counts[string(status)] += n
		h.Counts[Processed] += n
	}
	status, err := h.Advance(ctx, ids[len(ids)-1])
	if rate > 0 && err == nil && status == runs.Running {
		pause(ctx, time.Duration(float64(len(ids))/rate*float64(time.Second))-time.Since(began))
	}
	return status, cmp.Or(err, context.Cause(ctx))
}

// Processed is the count of all events that have an outcome in the run.
const Processed = "processed"
