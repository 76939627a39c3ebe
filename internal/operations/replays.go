package operations

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

// ReplayParams select what to replay and how.
type ReplayParams struct {
	StoredEventParams
	Rate    *float64 `json:"rate,omitzero" validate:"omitnil,rate"`
	Mode    string   `json:"mode,omitzero" validate:"omitempty,replay_mode"`
	Publish bool     `json:"publish,omitzero"`
	RunRequest
}

// Replay returns the parameters of the job. Without a pool they are only checked. Errors:
// events.ErrInvalid.
func (p *ReplayParams) Replay(ctx context.Context, pool *pgxpool.Pool) (*replay.Params, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	o := &replay.Params{Mode: replay.Mode(p.Mode), Publish: p.Publish, Rate: rate(p.Rate),
		Input: selectionTexts(p, "rate", "mode", "publish")}
	var err error
	o.Filter, err = p.Filter(ctx, pool)
	return o, err
}

// rate returns 0, no limit, where none is given.
func rate(given *float64) float64 {
	if given == nil {
		return 0
	}
	return *given
}

// ReplayPreview is the size of a replay.
type ReplayPreview struct {
	events.Preview
	// RepeatedEffects is the number of effects that would happen again, with mode force; nil for
	// other modes.
	RepeatedEffects *replay.ForcePreview `json:"again,omitempty"`
}

// PreviewReplay returns the size of a replay: estimated, or counted if exact is true.
func PreviewReplay(ctx context.Context, pool *pgxpool.Pool, o *replay.Params, exact bool) (p ReplayPreview, err error) {
	if o.Mode == replay.Force && !o.Publish {
		again, err := replay.PreviewForce(ctx, pool, o, exact)
		if err != nil {
			return p, err
		}
		p.RepeatedEffects = &again
	}
	preview := events.Estimate
	if exact {
		preview = events.Count
	}
	p.Preview, err = preview(ctx, pool, &o.Filter)
	return p, err
}

// StartReplay queues a replay with the job's parameters that p returned. A running processor
// executes it; with replay.Force only after an approval. Errors: events.ErrInvalid.
func StartReplay(ctx context.Context, pool *pgxpool.Pool, p ReplayParams, o *replay.Params, expected int64,
	by Requester) (*StartedRun, error) {
	request := replayRequest(o)
	request.Expected = expected
	return startRun(ctx, pool, by, "replay", request, p.RunRequest, selectionTexts(p))
}

// ExistingReplay returns the run that was started earlier with the same idempotency key, or nil. It
// exists even if nothing is left to replay. Errors: events.ErrInvalid.
func ExistingReplay(ctx context.Context, pool *pgxpool.Pool, p ReplayParams) (*StartedRun, error) {
	return existingRun(ctx, pool, replay.Job, p.IdempotencyKey, selectionTexts(p))
}

// replayRequest returns the request for a run of a replay.
func replayRequest(o *replay.Params) runs.Request {
	return runs.Request{Job: replay.Job, Params: o, NeedsApproval: o.Mode == replay.Force}
}

// RetryParams select failed and dead outcomes to retry.
type RetryParams struct {
	EventSelection
	Event   string    `json:"event,omitzero"`
	Run     RunNumber `json:"run,omitzero"`
	Status  string    `json:"status,omitzero" validate:"omitempty,retry_status"`
	Failure string    `json:"failure,omitzero"`
	Pattern string    `json:"failure_pattern,omitzero"`
	IDs     IDs       `json:"ids,omitzero"`
	Rate    *float64  `json:"rate,omitzero" validate:"omitnil,rate"`
	RunRequest
}

// Retry returns the parameters of the job. Without a pool they are only checked. Errors:
// events.ErrInvalid, events.ErrNotFound for the event or the run, *events.AmbiguousKeyError.
func (p *RetryParams) Retry(ctx context.Context, pool *pgxpool.Pool) (*replay.RetryParams, error) {
	if err := check(p); err != nil {
		return nil, err
	}
	f, err := p.EventSelection.filter(ctx, pool)
	if err != nil {
		return nil, err
	}
	o := &replay.RetryParams{Unfinished: apply.Unfinished{Run: int64(p.Run), Status: p.Status,
		ReasonContains: p.Failure, Pattern: p.Pattern, Objects: f.Objects},
		Input: selectionTexts(p, "rate", "run"), Rate: rate(p.Rate)}
	if f.Objects, f.IDs = nil, p.IDs; p.Event != "" {
		if p.IDs != nil {
			return nil, invalid("an event cannot be combined with ids: give one of them")
		}
		id, err := events.Find(ctx, pool, p.Event, f.Source)
		if err != nil {
			return nil, err
		}
		f.IDs = []int64{id}
	}
	o.Filter = f
	return o, checkRetriable(ctx, pool, o.Run)
}

// checkRetriable rejects a run whose failures cannot be retried.
func checkRetriable(ctx context.Context, pool *pgxpool.Pool, run int64) error {
	if run == events.LiveRun || pool == nil {
		return nil
	}
	r, err := runs.Show(ctx, pool, run)
	switch {
	case err != nil:
		return err
	case r.Job != replay.Job:
		return invalid("run %d is a %s: only failures of a replay, or of live (0), can be retried", run, r.Job)
	case r.Status == runs.Running:
		return invalid("run %d is not finished: wait for its end, or pause it", run)
	}
	return nil
}

// StartRetry queues a retry with the job's parameters that p returned. A running processor executes
// it. Errors: events.ErrInvalid.
func StartRetry(ctx context.Context, pool *pgxpool.Pool, p RetryParams, o *replay.RetryParams, expected int64,
	by Requester) (*StartedRun, error) {
	return startRun(ctx, pool, by, "retry", runs.Request{Job: replay.RetryJob, Params: o, Expected: expected},
		p.RunRequest, selectionTexts(p))
}

// ExistingRetry returns the run that was started earlier with the same idempotency key, or nil. It
// exists even if that run left nothing to retry. Errors: events.ErrInvalid.
func ExistingRetry(ctx context.Context, pool *pgxpool.Pool, p RetryParams) (*StartedRun, error) {
	return existingRun(ctx, pool, replay.RetryJob, p.IdempotencyKey, selectionTexts(p))
}
