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
}

// DefaultChunk is the most events between two checkpoints.
const DefaultChunk = 1000

// Runner carries out replays.
type Runner struct {
	// Pool is connected as postern_processor.
	Pool      *pgxpool.Pool
	Processor *processor.Processor
	// Chunk bounds the events between two checkpoints.
	Chunk int
}

// Carry walks the log from the run's checkpoint to its bound; it is a runs.Carry.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, _ *slog.Logger) (runs.Status, error) {
	var order Order
	asked := json.NewDecoder(bytes.NewReader(h.Asked))
	asked.DisallowUnknownFields() // an order of a later release may mean something else by what is unknown here
	if err := asked.Decode(&order); err != nil {
		return "", runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
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
		return r.Chunk
	}
	return max(1, min(r.Chunk, int(rate)))
}

// step applies some events and moves the checkpoint behind them.
func (r *Runner) step(ctx context.Context, h *runs.Hold, ids []int64, alone bool, rate float64) (runs.Status, error) {
	began := time.Now()
	counts, err := r.Processor.ApplyStored(ctx, processor.Target{Run: h.Run.Run}, ids, alone)
	if err != nil {
		return "", err
	}
	for status, n := range counts {
		h.Counts[string(status)] += n
		h.Counts[Processed] += n
	}
	status, err := h.Advance(ctx, ids[len(ids)-1])
	if rate > 0 && err == nil && status == runs.Running {
		runs.Pause(ctx, time.Duration(float64(len(ids))/rate*float64(time.Second))-time.Since(began))
	}
	return status, cmp.Or(err, context.Cause(ctx))
}

// Processed is the count of all events that have an outcome in the run.
const Processed = "processed"
