package admin

import (
	"context"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// Jobs are those that a schedule may ask for, and how each reads its parameters. Without a pool they are read as far as no database is needed.
var Jobs = map[string]runs.Plan{
	replay.Job: planned(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Order, error) {
		publish, err := flag(values, "publish")
		if err != nil {
			return runs.Order{}, err
		}
		o, err := PlanReplay(ctx, pool, values)
		if err != nil {
			return runs.Order{}, err
		}
		o.Publish = publish
		return replayed(o), nil
	}),
	replay.RetryJob: planned(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Order, error) {
		o, err := PlanRetry(ctx, pool, "", values)
		return runs.Order{Asked: o}, err
	}),
	retention.Job: planned(planRetention),
	reconcile.Job: planned(func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Order, error) {
		q := newQuery(ctx, pool, values, ReconcileParams)
		o := q.reconcile()
		return runs.Order{Asked: o}, q.err
	}),
}

// planned refuses what means nothing in a schedule, which gives reasons and keys itself.
func planned(plan runs.Plan) runs.Plan {
	return func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Order, error) {
		for _, p := range onceParams {
			if values.Has(p.Name) {
				return runs.Order{}, fmt.Errorf("%w: %s means nothing in a schedule: leave it out", events.ErrInvalid, p.Name)
			}
		}
		return plan(ctx, pool, values)
	}
}

// onceParams are those of every order: they say nothing of what is asked for.
var onceParams = []Param{
	{"reason", "why; kept in the ledger of runs"},
	{"once_key", "a name of yours for this occasion (the planned time, the build): whoever asks with it again gets the same run"},
}

// said is what was asked for, in the words of whoever asked, for telling orders under one key apart.
func said(values url.Values) string {
	words := url.Values{}
	for name := range values {
		words.Set(name, values.Get(name))
	}
	for _, p := range onceParams {
		words.Del(p.Name)
	}
	return words.Encode()
}

// ask enters an order that was read of values, with their reason and once key. action is the command that does so.
func ask(ctx context.Context, pool *pgxpool.Pool, by By, action string, o runs.Order, values url.Values) (*Asked, error) {
	o.Who, o.Reason, o.OnceKey, o.Said = by.String(), values.Get("reason"), values.Get("once_key"), said(values)
	return change(ctx, pool, by, action, func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*Asked, error) {
		run, fresh, err := runs.AskOnce(ctx, tx, o)
		if err != nil {
			return nil, err
		}
		return entered(ctx, tx, e, run, fresh, o.Said, o.Reason)
	})
}

// entered is a run as it was entered, with what the audit says of it: nothing where an earlier one has the key.
func entered(ctx context.Context, tx pgx.Tx, e *audit.Entry, run int64, fresh bool, target, reason string) (*Asked, error) {
	e.Run, e.Target, e.Reason = run, target, reason
	if !fresh {
		e.Action = ""
	}
	return shown(ctx, tx, run, fresh)
}

// earlier is the run of whoever used the once key of values first, for an order of a job; nil where nobody did, or there is no key.
func earlier(ctx context.Context, pool *pgxpool.Pool, job string, values url.Values) (*Asked, error) {
	run, err := runs.Earlier(ctx, pool, runs.Order{Job: job, OnceKey: values.Get("once_key"), Said: said(values)})
	if err != nil || run == 0 {
		return nil, err
	}
	return shown(ctx, pool, run, false)
}

// Asked is a run that was asked for.
type Asked struct {
	*runs.Run
	// Earlier: it is the run of whoever used the once key first.
	Earlier bool `json:"earlier,omitzero"`
}

// shown is the run as it stands.
func shown(ctx context.Context, db postgres.DB, run int64, fresh bool) (*Asked, error) {
	r, err := runs.Show(ctx, db, run)
	if err != nil {
		return nil, err
	}
	return &Asked{r, !fresh}, nil
}

// FireParams are those of a schedule's run.
var FireParams = onceParams

// Fire runs a schedule's job now. Errors: events.ErrNotFound, events.ErrInvalid.
func Fire(ctx context.Context, pool *pgxpool.Pool, name string, by By, values url.Values) (*Asked, error) {
	if q := newQuery(ctx, pool, values, FireParams); q.err != nil {
		return nil, q.err
	}
	f, err := runs.PlanFire(ctx, pool, Jobs, name, by.String(), values.Get("reason"), values.Get("once_key"))
	if err != nil {
		return nil, err
	}
	return change(ctx, pool, by, "schedules run", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*Asked, error) {
		run, fresh, err := f.Enter(ctx, tx)
		if err != nil {
			return nil, err
		}
		return entered(ctx, tx, e, run, fresh, "schedule "+name, f.Reason)
	})
}

// ScheduleParams choose schedules.
var ScheduleParams = []Param{limitParam, cursorParam}

// Schedules lists schedules by name. Errors: events.ErrInvalid.
func Schedules(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[runs.Scheduled], error) {
	q := newQuery(ctx, pool, values, ScheduleParams)
	limit := q.limit()
	if q.err != nil {
		return events.Page[runs.Scheduled]{}, q.err
	}
	return runs.Schedules(ctx, pool, q.text("cursor"), limit)
}

// ChangeSchedule pauses or resumes a schedule and returns it as it stands then. Errors: events.ErrNotFound, events.ErrInvalid.
func ChangeSchedule(ctx context.Context, pool *pgxpool.Pool, name, what string, by By) (*runs.Scheduled, error) {
	return change(ctx, pool, by, "schedules "+what, func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*runs.Scheduled, error) {
		e.Target = "schedule " + name
		switch what {
		case "pause":
			return runs.PauseSchedule(ctx, tx, name, by.String())
		case "resume":
			return runs.ResumeSchedule(ctx, tx, name)
		}
		return nil, fmt.Errorf("%w: %q is nothing that can be done to a schedule", events.ErrInvalid, what)
	})
}

// scheduleRoutes serves the schedules.
func (h *handler) scheduleRoutes(api *echo.Group) {
	api.GET("/schedules", list(h, Schedules))
	api.GET("/schedules/:name", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		return runs.ShowSchedule(ctx, h.Pool, param(c, "name"))
	}))
	for _, change := range []string{"pause", "resume"} {
		api.POST("/schedules/:name/"+change, h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
			by, err := why(c)
			if err != nil {
				return nil, err
			}
			return ChangeSchedule(ctx, h.Pool, param(c, "name"), change, by)
		}), fromOurselves, h.once)
	}
	api.POST("/schedules/:name/run", h.show(func(ctx context.Context, c echo.Context, query url.Values) (any, error) {
		if len(query) > 0 {
			return nil, fmt.Errorf("%w: reason and once_key are said in the body, not in the address", events.ErrInvalid)
		}
		values, err := asked(c.Request().Body)
		if err != nil {
			return nil, err
		}
		return Fire(ctx, h.Pool, param(c, "name"), by(c), values)
	}), fromOurselves, h.once)
}
