package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
)

// RetryJob is what retries are called in the ledger of runs.
const RetryJob = "retry"

// Retry is what a retry is asked to do: to try failed and dead outcomes again, under the run they are of.
type Retry struct {
	processor.Unfinished
	// Words are the filter as the person wrote it, by parameter.
	Words map[string]string `json:"words"`
	// Rate bounds the events per second; 0: as fast as it goes.
	Rate float64 `json:"rate"`
}

// RetryPreview is how much a retry would try.
type RetryPreview struct {
	Events int64 `json:"events"`
	// Exact: all were counted; otherwise there are at least so many.
	Exact bool `json:"exact"`
	// From and To are when the first and the last of the counted events were stored; zero where there is none.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
}

// previewWindows is how many windows of outcomes a preview looks through.
const previewWindows = 20

// Preview counts what would be tried, up to some hundred thousand outcomes; with exact, all.
func (o *Retry) Preview(ctx context.Context, pool *pgxpool.Pool, exact bool) (p RetryPreview, err error) {
	first, last := int64(0), int64(0)
	for cursor, n := int64(0), 0; cursor < math.MaxInt64; n++ {
		if n == previewWindows && !exact {
			return p, nil
		}
		var ids []int64
		if ids, cursor, err = o.Match(ctx, pool, cursor, math.MaxInt64); err != nil {
			return p, err
		}
		if len(ids) == 0 {
			continue
		}
		if first == 0 {
			first = ids[0]
		}
		last = ids[len(ids)-1]
		p.Events += int64(len(ids))
		p.From.Time, p.To.Time = events.Time(first), events.Time(last)
	}
	p.Exact = true
	return p, nil
}

// CarryRetry tries the unfinished outcomes of a run again from the checkpoint on; it is a runs.Carry. What is tried at a time is kept in hand, since what has been
// mended would not be chosen again by whoever goes on in the middle.
func (r *Runner) CarryRetry(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
	var order Retry
	if err := decode(h.Asked, &order); err != nil {
		return "", err
	}
	if err := r.freeze(ctx, h); err != nil {
		return "", err
	}
	if err := r.reads(ctx, order.Filter.Source); err != nil {
		return "", err
	}
	mode, err := r.modeOf(ctx, order.Run)
	if err != nil {
		return "", err
	}
	w := &walk{Runner: r, hold: h, alone: h.Abandoned, log: log, rate: order.Rate, match: order.Match, choosesOnce: true,
		to: processor.Target{Run: order.Run, Again: h.Run.Run, Effects: mode.effects(), Log: log}}
	w.do = w.apply
	return w.walk(ctx)
}

// modeOf is in which mode a run was asked for; State where it is no replay, or is not in the ledger any more.
func (r *Runner) modeOf(ctx context.Context, run int64) (Mode, error) {
	if run == events.LiveRun {
		return State, nil
	}
	of, err := runs.Show(ctx, r.Pool, run)
	switch {
	case errors.Is(err, events.ErrNotFound):
		return State, nil
	case err != nil:
		return "", err
	case of.Job != Job:
		return State, nil
	}
	var order Order
	if err := json.Unmarshal(of.Asked, &order); err != nil {
		return "", fmt.Errorf("read what run %d was asked for: %w", run, err)
	}
	return order.Mode, nil
}
