package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// route is an operation at a path below /api/v1. Its parameters are the parts of the path, and for
// a GET the query, for a POST the members of the JSON body. A reader may GET, an operator also
// POST.
type route struct {
	method, path string
	// params is the zero value of the operation's parameters.
	params any
	// run reads the parameters of a request and executes the operation.
	run func(ctx context.Context, c echo.Context) (any, error)
}

// routes is the API. Everything that a POST changes is audited, and executed once for each
// idempotency key.
func (h *handler) routes() []route {
	return []route{
		get(h, "/events", operations.Events),
		get(h, "/events/:id", operations.Event),
		get(h, "/conflicts", operations.Conflicts),
		get(h, "/objects", operations.Objects),
		get(h, "/objects/:source/:type/:id", operations.Object),
		post(h, "/objects/overwrite", operations.OverwriteObject),
		get(h, "/outcomes", operations.Outcomes),
		get(h, "/rejections", operations.Rejections),
		get(h, "/rejections/:id", byID(ingest.ShowRejection)),
		get(h, "/redactions", operations.ListPages(redaction.List)),
		get(h, "/audit", operations.Audit),
		get(h, "/retention", h.retention),

		get(h, "/runs", operations.Runs),
		get(h, "/runs/:id", byID(runs.Show)),
		get(h, "/runs/:id/drift", drift),
		get(h, "/runs/:id/differences", operations.Differences),
		post(h, "/runs/:id/pause", operations.PauseRun),
		post(h, "/runs/:id/resume", operations.ResumeRun),
		post(h, "/runs/:id/cancel", operations.CancelRun),
		post(h, "/runs/:id/approve", operations.ApproveRun),
		post(h, "/replays", h.replay),
		post(h, "/retries", h.retry),
		post(h, "/rebuilds", operations.Rebuild),
		get(h, "/rebuilds/:id/compare", operations.CompareRebuild),
		post(h, "/rebuilds/:id/swap", operations.SwapRebuild),
		post(h, "/rebuilds/:id/discard", operations.DiscardRebuild),
		get(h, "/schedules", operations.ListPages(runs.ListSchedules)),
		get(h, "/schedules/:name", byName(runs.ShowSchedule)),
		post(h, "/schedules/:name/pause", operations.PauseSchedule),
		post(h, "/schedules/:name/resume", operations.ResumeSchedule),
		post(h, "/schedules/:name/run", operations.RunSchedule),

		post(h, "/reconciliations", operations.Reconcile),
		get(h, "/watermarks", operations.Watermarks),
		get(h, "/refetches", operations.Refetches),
		post(h, "/refetches", operations.AddRefetch),
		post(h, "/refetches/cancel", operations.CancelRefetch),

		get(h, "/effects", operations.Effects),
		get(h, "/effects/backtest", h.backtest),
		get(h, "/effects/:id", byID(operations.Effect)),
		postEffect(h, "/effects/:id/approve", operations.ApproveEffects),
		postEffect(h, "/effects/:id/reject", operations.RejectEffects),
		postEffect(h, "/effects/:id/retry", operations.RetryEffects),
		postEffect(h, "/effects/:id/resolve", operations.ResolveEffect),
		postEffect(h, "/effects/:id/compensate", operations.CompensateEffects),

		get(h, "/stream", h.stream),
		get(h, "/stream/republish-passes/:id", byID(processor.ShowRepublish)),
		post(h, "/stream/republish-passes", operations.Republish),
		get(h, "/spools", operations.ListPages(redaction.Spools)),
		get(h, "/spools/:name", byName(redaction.ShowSpool)),
		post(h, "/spools/:name/remove", operations.RemoveSpool),
	}
}

// get is a route that only reads.
func get[P, T any](h *handler, path string, do func(context.Context, *pgxpool.Pool, P) (T, error)) route {
	return route{http.MethodGet, path, *new(P), func(ctx context.Context, c echo.Context) (any, error) {
		var p P
		if err := decode(c, &p); err != nil {
			return nil, err
		}
		return do(ctx, h.Pool, p)
	}}
}

// post is a route that may make changes.
func post[P, T any](h *handler, path string, do func(context.Context, *pgxpool.Pool, P, operations.Requester) (T,
	error)) route {
	return route{http.MethodPost, path, *new(P), func(ctx context.Context, c echo.Context) (any,
		error) {
		var p P
		if err := decode(c, &p); err != nil {
			return nil, err
		}
		return do(ctx, h.Pool, p, requesterOf(c))
	}}
}

// postEffect is a route that changes one effect and returns it.
func postEffect[P any](h *handler, path string, do func(context.Context, *pgxpool.Pool, []int64, P,
	operations.Requester) ([]effects.View, error)) route {
	return route{http.MethodPost, path, *new(P), func(ctx context.Context, c echo.Context) (any,
		error) {
		var of idParams
		if err := decodePath(c, &of); err != nil {
			return nil, err
		}
		var p P
		if err := decodeBody(c, &p); err != nil {
			return nil, err
		}
		by := requesterOf(c)
		if store := by.StoreResult; store != nil {
			by.StoreResult = func(ctx context.Context, tx pgx.Tx, all any) error {
				return store(ctx, tx, &all.([]effects.View)[0])
			}
		}
		all, err := do(ctx, h.Pool, []int64{of.ID}, p, by)
		if err != nil {
			return nil, err
		}
		return &all[0], nil
	}}
}

// idParams name one thing by its number, nameParams by its name.
type (
	idParams struct {
		ID int64 `json:"id"`
	}
	nameParams struct {
		Name string `json:"name"`
	}
)

// byID makes an operation of a function that returns one thing.
func byID[T any](show func(context.Context, postgres.DB, int64) (T, error)) func(context.Context, *pgxpool.Pool,
	idParams) (T, error) {
	return func(ctx context.Context, pool *pgxpool.Pool, p idParams) (T, error) { return show(ctx, pool, p.ID) }
}

func byName[T any](show func(context.Context, postgres.DB, string) (T, error)) func(context.Context, *pgxpool.Pool,
	nameParams) (T, error) {
	return func(ctx context.Context, pool *pgxpool.Pool, p nameParams) (T, error) { return show(ctx, pool, p.Name) }
}

// none are the parameters of an operation without parameters.
type none struct{}

// retention returns the policy of this process and what it would delete from the log.
func (h *handler) retention(ctx context.Context, pool *pgxpool.Pool, _ none) (*retention.View, error) {
	view, _, err := operations.Retention(ctx, pool, h.Retention, false)
	return view, err
}

func drift(ctx context.Context, pool *pgxpool.Pool, p idParams) (*objectscan.DriftReport, error) {
	return objectscan.ReportDrift(ctx, pool, p.ID)
}

func (h *handler) stream(ctx context.Context, pool *pgxpool.Pool, _ none) (*operations.StreamView, error) {
	return operations.Stream(ctx, pool, h.Stream)
}

// replayBody are the parameters of a replay. With Preview the response is only its size, counted
// with Exact, and with DryRun the differences that it would make.
type replayBody struct {
	operations.ReplayParams
	Preview bool `json:"preview,omitzero"`
	Exact   bool `json:"exact,omitzero"`
	DryRun  bool `json:"dry_run,omitzero"`
}

func (h *handler) replay(ctx context.Context, pool *pgxpool.Pool, p replayBody, by operations.Requester) (any, error) {
	params, err := p.Replay(ctx, pool)
	if err != nil {
		return nil, err
	}
	if p.DryRun {
		return h.dryRun(ctx, pool, params)
	}
	expected, err := operations.PreviewReplay(ctx, pool, params, p.Exact)
	if err != nil || p.Preview {
		return expected, err
	}
	return operations.StartReplay(ctx, pool, p.ReplayParams, params, expected.Events, by)
}

// retryBody are the parameters of a retry. With Preview the response is only its size, counted with
// Exact.
type retryBody struct {
	operations.RetryParams
	Preview bool `json:"preview,omitzero"`
	Exact   bool `json:"exact,omitzero"`
}

func (h *handler) retry(ctx context.Context, pool *pgxpool.Pool, p retryBody, by operations.Requester) (any, error) {
	params, err := p.Retry(ctx, pool)
	if err != nil {
		return nil, err
	}
	expected, err := params.Preview(ctx, pool, p.Exact)
	if err != nil || p.Preview {
		return expected, err
	}
	return operations.StartRetry(ctx, pool, p.RetryParams, params, expected.Events, by)
}

// errDryRunBusy is the response to a second dry run at the same time. Each may use much memory, so
// only one may run.
var errDryRunBusy = &problem{Status: http.StatusTooManyRequests, Type: "urn:postern:problem:busy",
	Title: "another dry run is in progress",
	Detail: "A process executes one dry run at a time. Try again when the other has " +
		"finished, or use postern replay --dry-run."}

func (h *handler) dryRun(ctx context.Context, pool *pgxpool.Pool, o *replay.Params) (any, error) {
	if h.Endpoints == nil {
		return nil, fmt.Errorf("%w: dry_run: this process has no sources; use postern replay --dry-run "+
			"--config FILE", events.ErrInvalid)
	}
	if !h.dryRunMu.TryLock() {
		return nil, errDryRunBusy
	}
	defer h.dryRunMu.Unlock()
	return operations.DryRunReplay(ctx, pool, h.Endpoints(), o)
}

func (h *handler) backtest(ctx context.Context, pool *pgxpool.Pool,
	p operations.BacktestParams) (*operations.BacktestResult, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if h.Endpoints == nil || h.Rule == nil {
		return nil, fmt.Errorf("%w: this process has no rules; use postern effects backtest --config FILE",
			events.ErrInvalid)
	}
	rule, err := h.Rule(p.Rule)
	switch {
	case err != nil:
		return nil, fmt.Errorf("rule %s: %w", p.Rule, err)
	case rule == nil:
		return nil, fmt.Errorf("rule %q: %w", p.Rule, events.ErrNotFound)
	}
	if !h.dryRunMu.TryLock() {
		return nil, errDryRunBusy
	}
	defer h.dryRunMu.Unlock()
	return operations.BacktestEffects(ctx, pool, h.Endpoints(), rule, p.Since)
}
