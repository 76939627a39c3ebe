package operations

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
)

// RunRequest are the parameters of every request for a run. They do not select what the run does.
type RunRequest struct {
	Reason         string `json:"reason,omitzero"`
	IdempotencyKey string `json:"idempotency_key,omitzero"`
}

// StartedRun is a run that was requested.
type StartedRun struct {
	*runs.Run
	// Earlier: an earlier request with the same idempotency key started the run.
	Earlier bool `json:"earlier,omitzero"`
}

// selectionTexts returns the given parameters that select what a run does, as texts by name.
func selectionTexts(params any, without ...string) map[string]string {
	return Texts(params, append(without, "reason", "idempotency_key")...)
}

// encode returns parameters as one text, to compare two requests with the same idempotency key, and
// for the audit.
func encode(texts map[string]string) string {
	values := url.Values{}
	for name, text := range texts {
		values.Set(name, text)
	}
	return values.Encode()
}

// startRun queues a run. action is the command for the audit, selection what selectionTexts
// returns.
func startRun(ctx context.Context, pool *pgxpool.Pool, by Requester, action string, o runs.Request, r RunRequest,
	selection map[string]string) (*StartedRun, error) {
	o.Actor, o.Reason, o.IdempotencyKey, o.ParamsText = by.String(), r.Reason, r.IdempotencyKey, encode(selection)
	return change(ctx, pool, by, action, r.Reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*StartedRun, error) {
		run, isNew, err := runs.CreateIdempotent(ctx, tx, o)
		if err != nil {
			return nil, err
		}
		return auditRun(ctx, tx, e, run, isNew, o.ParamsText)
	})
}

// auditRun completes the audit entry of a new run and returns the run. If an earlier run has the
// key, it clears the entry.
func auditRun(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry, run int64, isNew bool,
	target string) (*StartedRun, error) {
	e.Run, e.Target = run, target
	if !isNew {
		e.Action = ""
	}
	return loadStartedRun(ctx, tx, run, isNew)
}

// existingRun returns the run of a job that was started earlier with an idempotency key; nil where
// there is none.
func existingRun(ctx context.Context, pool *pgxpool.Pool, job, key string, selection map[string]string) (*StartedRun,
	error) {
	run, err := runs.FindByKey(ctx, pool, runs.Request{Job: job, IdempotencyKey: key, ParamsText: encode(selection)})
	if err != nil || run == 0 {
		return nil, err
	}
	return loadStartedRun(ctx, pool, run, false)
}

func loadStartedRun(ctx context.Context, db postgres.DB, run int64, isNew bool) (*StartedRun, error) {
	r, err := runs.Show(ctx, db, run)
	if err != nil {
		return nil, err
	}
	return &StartedRun{r, !isNew}, nil
}

// RunChange names a run to change.
type RunChange struct {
	Run    int64  `json:"id"`
	Reason string `json:"reason,omitzero"`
}

// PauseRun pauses a run at its next checkpoint. Errors: events.ErrNotFound, events.ErrInvalid.
func PauseRun(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeStatus(ctx, pool, p, by, "runs pause", runs.Paused)
}

// ResumeRun continues a paused run. Errors: events.ErrNotFound, events.ErrInvalid.
func ResumeRun(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeStatus(ctx, pool, p, by, "runs resume", runs.Queued)
}

// CancelRun cancels a run; what it has done stays. Errors: events.ErrNotFound, events.ErrInvalid.
func CancelRun(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeStatus(ctx, pool, p, by, "runs cancel", runs.Cancelled)
}

// ApproveRun starts a run that awaits approval. A reason is required. Errors: events.ErrNotFound,
// events.ErrInvalid.
func ApproveRun(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeRun(ctx, pool, p, by, "runs approve", func(ctx context.Context, db postgres.DB, run int64) error {
		if err := OwnRequest(ctx, db, by, Causes{Runs: []int64{run}}); err != nil {
			return err
		}
		return runs.Approve(ctx, db, run, by.String(), p.Reason)
	})
}

// SwapRebuild swaps the objects of a staged rebuild. Errors: events.ErrInvalid, events.ErrNotFound.
func SwapRebuild(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeRun(ctx, pool, p, by, "rebuild swap", func(ctx context.Context, db postgres.DB, run int64) error {
		if err := OwnRequest(ctx, db, by, Causes{Runs: []int64{run}}); err != nil {
			return err
		}
		return rebuild.Swap(ctx, db, run)
	})
}

// DiscardRebuild discards the staged objects of a rebuild. Errors: events.ErrInvalid,
// events.ErrNotFound.
func DiscardRebuild(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester) (*runs.Run, error) {
	return changeRun(ctx, pool, p, by, "rebuild discard", rebuild.Discard)
}

func changeStatus(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester, action string,
	to runs.Status) (*runs.Run, error) {
	return changeRun(ctx, pool, p, by, action, func(ctx context.Context, db postgres.DB, run int64) error {
		return runs.ChangeStatus(ctx, db, run, to)
	})
}

// changeRun executes a change of a run and returns the run.
func changeRun(ctx context.Context, pool *pgxpool.Pool, p RunChange, by Requester, action string,
	do func(ctx context.Context, db postgres.DB, run int64) error) (*runs.Run, error) {
	return change(ctx, pool, by, action, p.Reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*runs.Run, error) {
		if err := do(ctx, tx, p.Run); err != nil {
			return nil, err
		}
		e.Run, e.Target = p.Run, fmt.Sprintf("run %d", p.Run)
		return runs.Show(ctx, tx, p.Run)
	})
}
