package admin

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// Jobs are the jobs of schedules, with the functions that read their parameters. Without a pool,
// parameters are checked without the database.
var Jobs = map[string]runs.RequestBuilder{
	replay.Job: rejectRequestParams(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Request,
		error) {
		publish, err := flag(values, "publish")
		if err != nil {
			return runs.Request{}, err
		}
		o, err := ParseReplay(ctx, pool, values)
		if err != nil {
			return runs.Request{}, err
		}
		o.Publish = publish
		return replayRequest(o), nil
	}),
	replay.RetryJob: rejectRequestParams(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Request,
		error) {
		o, err := ParseRetry(ctx, pool, "", values)
		return runs.Request{Params: o}, err
	}),
	retention.Job: rejectRequestParams(parseRetention),
	reconcile.Job: rejectRequestParams(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Request,
		error) {
		q := newQuery(ctx, pool, values, ReconcileParams)
		o := q.parseReconcile()
		return runs.Request{Params: o}, q.err
	}),
}

// rejectRequestParams rejects parameters that a schedule sets itself: the reason and the
// idempotency key.
func rejectRequestParams(build runs.RequestBuilder) runs.RequestBuilder {
	return func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Request, error) {
		for _, p := range requestParams {
			if values.Has(p.Name) {
				return runs.Request{}, fmt.Errorf("%w: %s has no effect in a schedule: leave it out", events.ErrInvalid,
					p.Name)
			}
		}
		return build(ctx, pool, values)
	}
}

// requestParams are the parameters of every request for a run. They do not select what the run
// does.
var requestParams = []Param{
	{"reason", "reason; stored with the run"},
	{"idempotency_key", "your idempotency key (for example the planned time or the build number): a second request " +
		"with the same key gets the same run"},
}

// encodeParams encodes the parameters of a request, to compare two requests with the same
// idempotency key.
func encodeParams(values url.Values) string {
	selection := url.Values{}
	for name := range values {
		selection.Set(name, values.Get(name))
	}
	for _, p := range requestParams {
		selection.Del(p.Name)
	}
	return selection.Encode()
}

// startRun queues a run with the reason and idempotency key in values. action is the command for
// the audit.
func startRun(ctx context.Context, pool *pgxpool.Pool, by Requester, action string, o runs.Request,
	values url.Values) (*StartedRun, error) {
	o.Actor, o.Reason, o.IdempotencyKey, o.ParamsText = by.String(), values.Get("reason"),
		values.Get("idempotency_key"), encodeParams(values)
	return change(ctx, pool, by, action, func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*StartedRun,
		error) {
		run, isNew, err := runs.CreateIdempotent(ctx, tx, o)
		if err != nil {
			return nil, err
		}
		return auditRun(ctx, tx, e, run, isNew, o.ParamsText, o.Reason)
	})
}

// auditRun completes the audit entry of a new run and returns the run. If an earlier run has the
// key, it clears the entry.
func auditRun(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry, run int64, isNew bool, target,
	reason string) (*StartedRun, error) {
	e.Run, e.Target, e.Reason = run, target, reason
	if !isNew {
		e.Action = ""
	}
	return loadStartedRun(ctx, tx, run, isNew)
}

// existingRun returns the run of a job that was started earlier with the idempotency key in values;
// nil where there is none.
func existingRun(ctx context.Context, pool *pgxpool.Pool, job string, values url.Values) (*StartedRun, error) {
	run, err := runs.FindByKey(ctx, pool, runs.Request{Job: job, IdempotencyKey: values.Get("idempotency_key"),
		ParamsText: encodeParams(values)})
	if err != nil || run == 0 {
		return nil, err
	}
	return loadStartedRun(ctx, pool, run, false)
}

// StartedRun is a run that was requested.
type StartedRun struct {
	*runs.Run
	// Earlier: an earlier request with the same idempotency key started the run.
	Earlier bool `json:"earlier,omitzero"`
}

// loadStartedRun reads the run.
func loadStartedRun(ctx context.Context, db postgres.DB, run int64, isNew bool) (*StartedRun, error) {
	r, err := runs.Show(ctx, db, run)
	if err != nil {
		return nil, err
	}
	return &StartedRun{r, !isNew}, nil
}

// RunScheduleParams are the parameters of RunSchedule.
var RunScheduleParams = requestParams

// RunSchedule starts a schedule's job now. Errors: events.ErrNotFound, events.ErrInvalid.
func RunSchedule(ctx context.Context, pool *pgxpool.Pool, name string, by Requester, values url.Values) (*StartedRun,
	error) {
	if q := newQuery(ctx, pool, values, RunScheduleParams); q.err != nil {
		return nil, q.err
	}
	f, err := runs.PrepareScheduleRun(ctx, pool, Jobs, name, by.String(), values.Get("reason"),
		values.Get("idempotency_key"))
	if err != nil {
		return nil, err
	}
	return change(ctx, pool, by, "schedules run", func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*StartedRun, error) {
		run, isNew, err := f.Insert(ctx, tx)
		if err != nil {
			return nil, err
		}
		return auditRun(ctx, tx, e, run, isNew, "schedule "+name, f.Reason)
	})
}

// ScheduleParams select a page of schedules.
var ScheduleParams = []Param{limitParam, cursorParam}

// Schedules lists schedules by name. Errors: events.ErrInvalid.
func Schedules(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[runs.ScheduleState], error) {
	q := newQuery(ctx, pool, values, ScheduleParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[runs.ScheduleState]{}, q.err
	}
	return runs.ListSchedules(ctx, pool, q.text("cursor"), limit)
}

// ChangeSchedule pauses or resumes a schedule and returns it. Errors: events.ErrNotFound,
// events.ErrInvalid.
func ChangeSchedule(ctx context.Context, pool *pgxpool.Pool, name, action string, by Requester) (*runs.ScheduleState,
	error) {
	return change(ctx, pool, by, "schedules "+action,
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*runs.ScheduleState, error) {
			e.Target = "schedule " + name
			switch action {
			case "pause":
				return runs.PauseSchedule(ctx, tx, name, by.String())
			case "resume":
				return runs.ResumeSchedule(ctx, tx, name)
			}
			return nil, fmt.Errorf("%w: %q is not an action for a schedule: use pause or resume", events.ErrInvalid,
				action)
		})
}

// scheduleRoutes serves the schedules.
func (h *handler) scheduleRoutes(api *echo.Group) {
	api.GET("/schedules", list(h, Schedules))
	api.GET("/schedules/:name", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		return runs.ShowSchedule(ctx, h.Pool, param(c, "name"))
	}))
	for _, change := range []string{"pause", "resume"} {
		api.POST("/schedules/:name/"+change,
			h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
				by, err := requesterWithReason(c)
				if err != nil {
					return nil, err
				}
				return ChangeSchedule(ctx, h.Pool, param(c, "name"), change, by)
			}), requireJSON, h.withIdempotencyKey)
	}
	api.POST("/schedules/:name/run", h.serveJSON(func(ctx context.Context, c echo.Context, query url.Values) (any,
		error) {
		if len(query) > 0 {
			return nil, fmt.Errorf("%w: send reason and idempotency_key in the body, not in the URL", events.ErrInvalid)
		}
		values, err := parseBody(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return RunSchedule(ctx, h.Pool, param(c, "name"), requesterOf(c), values)
	}), requireJSON, h.withIdempotencyKey)
}
