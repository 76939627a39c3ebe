package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// RetryJob is the name of retries in the table of runs.
const RetryJob = "retry"

// RetryParams are the parameters of a retry: it applies failed and dead outcomes again, under the
// run that they belong to.
type RetryParams struct {
	apply.Unfinished
	// Input is the filter as the operator wrote it, by parameter.
	Input map[string]string `json:"input"`
	// Rate bounds the events per second. 0 is no limit.
	Rate float64 `json:"rate"`
}

// RetryPreview is the number of events that a retry would apply.
type RetryPreview struct {
	Events int64 `json:"events"`
	// Complete says that all events were counted. Otherwise there are at least as many.
	Complete bool `json:"exact"`
	// From and To are when the first and the last of the counted events were stored, zero if there
	// is none.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
}

// previewRanges is how many ranges of outcomes a preview reads.
const previewRanges = 20

// Preview counts the events that would be retried. It stops after some hundred thousand outcomes,
// unless complete is set.
func (o *RetryParams) Preview(ctx context.Context, pool *pgxpool.Pool, complete bool) (p RetryPreview, err error) {
	p.Complete, err = eachRange(ctx, pool, o.Match, math.MaxInt64, complete, func(ids []int64) error {
		if p.Events == 0 {
			p.From.Time = events.Time(ids[0])
		}
		p.Events += int64(len(ids))
		p.To.Time = events.Time(ids[len(ids)-1])
		return nil
	})
	return p, err
}

// eachRange calls do with the events that match finds, up to a bound. It stops after some ranges,
// unless complete is set, and reports whether it has read all.
func eachRange(ctx context.Context, pool *pgxpool.Pool, match matchFunc, bound int64, complete bool,
	do func(ids []int64) error) (all bool, err error) {
	var ids []int64
	for cursor, n := int64(0), 0; cursor < bound; n++ {
		if n == previewRanges && !complete {
			return false, nil
		}
		if ids, cursor, err = match(ctx, pool, cursor, bound); err == nil && len(ids) > 0 {
			err = do(ids)
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// ExecuteRetry applies the unfinished outcomes of a run again, from the checkpoint on. It is a
// runs.Executor. It records each chunk of events before it applies the chunk. A process that
// continues in the middle of the chunk would not select the events that have succeeded.
func (r *Runner) ExecuteRetry(ctx context.Context, lease *runs.Lease, log *slog.Logger) (runs.Status, error) {
	var params RetryParams
	if err := lease.DecodeParams(&params); err != nil {
		return "", err
	}
	if err := r.freeze(ctx, lease); err != nil {
		return "", err
	}
	if err := r.checkSource(ctx, params.Filter.Source); err != nil {
		return "", err
	}
	mode, err := r.modeOfRun(ctx, params.Run)
	if err != nil {
		return "", err
	}
	w := &execution{Runner: r, lease: lease, single: lease.Abandoned, log: log, rate: params.Rate, match: params.Match,
		recordsChunk: true,
		to:           apply.Target{Run: params.Run, RetryRun: lease.Run.ID, Effects: mode.effects()}}
	w.do = w.apply
	return w.run(ctx)
}

// modeOfRun returns the mode that a run was requested with. It is State if the run is no replay, or
// is no longer in the table of runs.
func (r *Runner) modeOfRun(ctx context.Context, run int64) (Mode, error) {
	if run == events.LiveRun {
		return State, nil
	}
	shown, err := runs.Show(ctx, r.Pool, run)
	switch {
	case errors.Is(err, events.ErrNotFound):
		return State, nil
	case err != nil:
		return "", err
	case shown.Job != Job:
		return State, nil
	}
	var params Params
	if err := json.Unmarshal(shown.Params, &params); err != nil {
		return "", fmt.Errorf("read the parameters of run %d: %w", run, err)
	}
	return params.Mode, nil
}
