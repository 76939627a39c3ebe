package operations

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// Jobs are the jobs of schedules, with the functions that read their parameters. Without a pool,
// parameters are checked without the database.
var Jobs = map[string]runs.RequestBuilder{
	replay.Job: build(func(ctx context.Context, pool *pgxpool.Pool, p ReplayParams) (runs.Request, error) {
		o, err := p.Replay(ctx, pool)
		if err != nil {
			return runs.Request{}, err
		}
		return replayRequest(o), nil
	}),
	replay.RetryJob: build(func(ctx context.Context, pool *pgxpool.Pool, p RetryParams) (runs.Request, error) {
		o, err := p.Retry(ctx, pool)
		return runs.Request{Params: o}, err
	}, "event"),
	retention.Job: build(buildRetention),
	reconcile.Job: build(func(ctx context.Context, pool *pgxpool.Pool, p ReconcileParams) (runs.Request, error) {
		o, err := p.reconciliation(ctx, pool)
		return runs.Request{Params: o}, err
	}),
}

// build returns a builder that reads the parameters P, without those that a schedule sets itself,
// the reason and the idempotency key, and without those named.
func build[P any](request func(context.Context, *pgxpool.Pool, P) (runs.Request, error),
	without ...string) runs.RequestBuilder {
	return func(ctx context.Context, pool *pgxpool.Pool, texts map[string]string) (runs.Request, error) {
		for _, p := range Params(RunRequest{}) {
			if _, given := texts[p.Name]; given {
				return runs.Request{}, invalid("%s has no effect in a schedule: leave it out", p.Name)
			}
		}
		var p P
		if err := Parse(&p, texts, append(without, "reason", "idempotency_key")...); err != nil {
			return runs.Request{}, err
		}
		return request(ctx, pool, p)
	}
}

// RunScheduleParams name a schedule to run now.
type RunScheduleParams struct {
	Name string `json:"name"`
	RunRequest
}

// RunSchedule starts a schedule's job now. Errors: events.ErrNotFound, events.ErrInvalid.
func RunSchedule(ctx context.Context, pool *pgxpool.Pool, p RunScheduleParams, by Requester) (*StartedRun, error) {
	f, err := runs.PrepareScheduleRun(ctx, pool, Jobs, p.Name, by.String(), p.Reason, p.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return change(ctx, pool, by, "schedules run", f.Reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*StartedRun, error) {
		run, isNew, err := f.Insert(ctx, tx)
		if err != nil {
			return nil, err
		}
		return auditRun(ctx, tx, e, run, isNew, "schedule "+p.Name)
	})
}

// ScheduleChange names a schedule to change.
type ScheduleChange struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitzero"`
}

// PauseSchedule pauses a schedule: planned times are skipped. Errors: events.ErrNotFound,
// events.ErrInvalid.
func PauseSchedule(ctx context.Context, pool *pgxpool.Pool, p ScheduleChange, by Requester) (*runs.ScheduleState,
	error) {
	return change(ctx, pool, by, "schedules pause", p.Reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*runs.ScheduleState, error) {
			e.Target = "schedule " + p.Name
			return runs.PauseSchedule(ctx, tx, p.Name, by.String())
		})
}

// ResumeSchedule resumes a paused schedule from now on. Errors: events.ErrNotFound,
// events.ErrInvalid.
func ResumeSchedule(ctx context.Context, pool *pgxpool.Pool, p ScheduleChange, by Requester) (*runs.ScheduleState,
	error) {
	return change(ctx, pool, by, "schedules resume", p.Reason,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*runs.ScheduleState, error) {
			e.Target = "schedule " + p.Name
			return runs.ResumeSchedule(ctx, tx, p.Name)
		})
}
