package admin

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
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
// a GET the query, for a POST or PUT the members of the JSON body. LeastRole says who may call it.
type route struct {
	method, path string
	// summary says what the operation does, for the reference.
	summary string
	// params is the zero value of the operation's parameters, and result the type of its result.
	params any
	result reflect.Type
	run    runFunc
	// stream, if set, writes the response instead of run, as Server-Sent Events. Their data are of
	// the type result, or its items if clients can get it as JSON too.
	stream echo.HandlerFunc
}

// runFunc reads the parameters of a request and executes the operation.
type runFunc func(ctx context.Context, c echo.Context) (any, error)

// The functions that operations are: one that reads, one that may make changes, and one that
// changes effects.
type (
	reading[P, T any]  func(context.Context, *pgxpool.Pool, P) (T, error)
	changing[P, T any] func(context.Context, *pgxpool.Pool, P, operations.Requester) (T, error)
	deciding[P any]    func(context.Context, *pgxpool.Pool, []int64, P, operations.Requester) ([]effects.View, error)
)

// routes is the API. Everything that a POST changes is audited, and executed once for each
// idempotency key.
func (h *handler) routes() []route {
	return []route{
		{http.MethodGet, "/me", "Show who calls, and what the caller may do", none{},
			reflect.TypeFor[*operations.Caller](), h.me, nil},
		get(h, "/processes", "List the processes of the instance with their state",
			operations.ListPages(activity.Processes)),
		get(h, "/summary", "List what needs the attention of an operator", operations.Summarize),
		get(h, "/activity", "Show how many events and deliveries there were, by minute or hour",
			operations.Activity),
		get(h, "/sources", "List the sources with their settings, as this process has them",
			withEndpoints(h, operations.Sources)),
		get(h, "/sources/:name", "Show a source, and until when its log and mirror are complete",
			withEndpoints(h, operations.ShowSource)),
		get(h, "/source-types", "List the event types that deliveries brought, with those that are silent",
			operations.SourceTypes),

		get(h, "/events", "List events, the newest first", operations.Events),
		{method: http.MethodGet, path: "/events/tail", summary: "Follow new events as Server-Sent Events",
			params: operations.TailParams{}, result: reflect.TypeFor[events.Item](), stream: h.tail},
		get(h, "/events/:id", "Show all that is stored of an event: receipt, conflicts, outcomes, body",
			operations.Event),
		get(h, "/find", "Find all events, objects, runs, rejections, effects, schedules and sources with an id",
			operations.Find),
		get(h, "/conflicts", "List deliveries with the event id of a stored event and different content",
			operations.Conflicts),
		get(h, "/objects", "List mirrored objects", operations.Objects),
		get(h, "/objects/:source/:type/:id", "Show an object: its state, version, flags and last event",
			operations.Object),
		get(h, "/objects/:source/:type/:id/history", "List the events of an object with their outcomes and states, "+
			"the newest first", withEndpoints(h, operations.ObjectHistory)),
		get(h, "/objects/:source/:type/:id/history/diff", "Compare two states of an object: those of two events, or "+
			"of an event and the present object", withEndpoints(h, operations.DiffHistory)),
		get(h, "/objects/:source/:type/:id/at", "Show the state that the mirror had of an object at a time",
			withEndpoints(h, operations.ShowObjectAt)),
		get(h, "/objects/:source/:type/:id/differences", "List the differences between an object and the provider "+
			"that object scans have found", operations.ObjectDifferences),
		post(h, "/objects/overwrite", "Overwrite an object with its current state at the provider; requires a reason",
			operations.OverwriteObject),
		post(h, "/objects/announce", "Publish objects of the mirror to NATS again, and forward them",
			operations.Announce),
		{method: http.MethodGet, path: "/changes", summary: "Read the last changes of objects in order, also as " +
			"Server-Sent Events", params: operations.ChangeParams{}, result: reflect.TypeFor[changes.Page](),
			stream: h.changes},
		get(h, "/feed-cursors", "List the cursors that Postern keeps for readers of changes",
			operations.ListPages(changes.Cursors)),
		get(h, "/feed-cursors/:name", "Show a feed cursor, and how far it is behind", byName(changes.ShowCursor)),
		put(h, "/feed-cursors/:name", "Report how far a reader has processed the changes; a reader may do so",
			operations.SetFeedCursor),
		post(h, "/feed-cursors/:name/remove", "Remove a feed cursor", operations.RemoveFeedCursor),
		post(h, "/feed-epochs", "End all cursors of readers of changes, after a restore that Postern cannot detect; "+
			"a reason is required", operations.BeginFeedEpoch),
		get(h, "/outcomes", "List outcomes, those of the newest events first", operations.Outcomes),
		get(h, "/failures", "Group the newest failed and dead events by reason, without its variable parts",
			operations.FailuresByReason),
		get(h, "/rejections", "List rejected deliveries, the newest first", operations.Rejections),
		get(h, "/rejections/groups", "Group rejected deliveries by source and reason, with the probable cause of each",
			operations.RejectionGroups),
		get(h, "/rejections/:id", "Show a rejected delivery: the reason, headers, body and verification",
			h.rejection),
		post(h, "/rejections/verify", "Verify rejected deliveries again with the current secrets; nothing is written",
			h.verifyRejections),
		post(h, "/rejections/reprocess", "Store rejected deliveries that are valid now; a reason is required",
			h.Reprocessor.Reprocess),
		get(h, "/redactions", "List executed redactions, the newest first", operations.ListPages(redaction.List)),
		get(h, "/audit", "List changes by operators, the newest first", operations.Audit),
		get(h, "/retention", "Show the maximum ages, and the days of the log with their drop dates", h.retention),

		get(h, "/runs", "List runs, the newest first", operations.Runs),
		get(h, "/runs/:id", "Show a run with its parameters, progress and result", byID(runs.Show)),
		get(h, "/runs/:id/drift", "Show the differences that an object scan has found, counted", drift),
		get(h, "/runs/:id/differences", "List the objects in which an object scan has found a difference",
			operations.Differences),
		post(h, "/runs/:id/pause", "Pause a run at its next checkpoint", operations.PauseRun),
		post(h, "/runs/:id/resume", "Continue a paused run", operations.ResumeRun),
		post(h, "/runs/:id/cancel", "Cancel a run; what it has done stays", operations.CancelRun),
		post(h, "/runs/:id/approve", "Approve a run that awaits approval; a reason is required",
			operations.ApproveRun),
		post(h, "/replays", "Apply stored events again", h.replay),
		post(h, "/retries", "Retry failed and dead events", h.retry),
		post(h, "/rebuilds", "Rebuild the objects of a source from the log, alongside the live ones",
			operations.Rebuild),
		get(h, "/rebuilds/:id/compare", "Compare the staged objects of a rebuild with the live objects",
			operations.CompareRebuild),
		post(h, "/rebuilds/:id/swap", "Replace the live objects with the staged objects of a rebuild",
			operations.SwapRebuild),
		post(h, "/rebuilds/:id/discard", "Discard the staged objects of a rebuild and end it",
			operations.DiscardRebuild),
		get(h, "/schedules", "List schedules with their next and last runs",
			operations.ListPages(runs.ListSchedules)),
		get(h, "/schedules/:name", "Show a schedule with its job, timetable and state", byName(runs.ShowSchedule)),
		post(h, "/schedules/:name/pause", "Pause a schedule: planned times are skipped, open runs continue",
			operations.PauseSchedule),
		post(h, "/schedules/:name/resume", "Resume a paused schedule from now on", operations.ResumeSchedule),
		post(h, "/schedules/:name/run", "Run a schedule's job now", operations.RunSchedule),

		post(h, "/reconciliations", "Compare the log or the mirror with the provider's API and repair what differs",
			operations.Reconcile),
		get(h, "/watermarks", "List until when the log and the mirror are complete", operations.Watermarks),
		get(h, "/refetches", "List objects whose refetch is pending", operations.Refetches),
		post(h, "/refetches", "Request the refetch of an object by a running processor", operations.AddRefetch),
		post(h, "/refetches/cancel", "Cancel the refetch of an object", operations.CancelRefetch),

		get(h, "/effects", "List effects, the newest first", operations.Effects),
		get(h, "/effects/backtest", "Show which effects past changes would have caused under a rule, as a dry run",
			h.backtest),
		get(h, "/effects/rules", "List the effect rules of the process that responds", func(_ context.Context,
			_ *pgxpool.Pool, p operations.Page) (events.Page[operations.EffectRule], error) {
			return operations.EffectRules(h.rules(), p)
		}),
		get(h, "/effects/rules/:rule", "Show an effect rule: its configuration, and its effects by state",
			func(ctx context.Context, pool *pgxpool.Pool, p operations.RuleName) (*operations.EffectRuleDetail, error) {
				return operations.ShowEffectRule(ctx, pool, h.rules(), p)
			}),
		get(h, "/effects/:id", "Show an effect: the event, its steps, external ids, and the allowed actions",
			byID(operations.Effect)),
		get(h, "/effects/:id/data", "Show what the condition and the templates of an effect's rule get",
			byID(effects.ShowData)),
		get(h, "/effects/:id/requests", "Show the requests that an effect still has to send", func(ctx context.Context,
			pool *pgxpool.Pool, p idParams) (*operations.EffectRequests, error) {
			var to []config.ResolvedDestination
			if h.Destinations != nil {
				to = h.Destinations()
			}
			return operations.ShowEffectRequests(ctx, pool, h.rules(), to, p.ID)
		}),
		post(h, "/effects/approve", "Approve effects that await approval, all or none",
			severalEffects(operations.ApproveEffects)),
		post(h, "/effects/reject", "Reject effects for good, all or none; completed steps stay",
			severalEffects(operations.RejectEffects)),
		post(h, "/effects/retry", "Retry failed effects now, all or none", severalEffects(operations.RetryEffects)),
		postEffect(h, "/effects/:id/approve", "Approve an effect that awaits approval", operations.ApproveEffects),
		postEffect(h, "/effects/:id/reject", "Reject an effect for good; completed steps stay",
			operations.RejectEffects),
		postEffect(h, "/effects/:id/retry", "Retry a failed effect now", operations.RetryEffects),
		postEffect(h, "/effects/:id/resolve", "Resolve a step with unknown outcome", operations.ResolveEffect),
		postEffect(h, "/effects/:id/compensate", "Undo the completed steps of an effect, the last step first",
			operations.CompensateEffects),

		get(h, "/stream", "Show the backlog of the streams and the state of the republisher", h.stream),
		get(h, "/stream/republish-passes/:id", "Show a pass of the republisher", byID(processor.ShowRepublish)),
		post(h, "/stream/republish-passes", "Republish events that are lost from the stream", operations.Republish),
		get(h, "/spools", "List the spools that are registered in the database",
			operations.ListPages(redaction.Spools)),
		get(h, "/spools/:name", "Show a spool", byName(redaction.ShowSpool)),
		post(h, "/spools/:name/remove", "Remove a spool whose disk is lost; a reason is required",
			operations.RemoveSpool),
		get(h, "/doctor", "Check the configuration, the machine, PostgreSQL and NATS as this process has them, at "+
			"most every 5 s", h.examine),

		get(h, "/reports/verify", "Show the newest report that postern verify --store-report stored, with its age",
			operations.NewestVerifyReport),

		get(h, "/openapi.json", "Describe this API as an OpenAPI 3.1 document", openAPI),
	}
}

// get is a route that only reads.
func get[P, T any](h *handler, path, summary string, do reading[P, T]) route {
	run := func(ctx context.Context, c echo.Context) (any, error) {
		var p P
		if err := decode(c, &p); err != nil {
			return nil, err
		}
		return do(ctx, h.Pool, p)
	}
	return route{http.MethodGet, path, summary, *new(P), reflect.TypeFor[T](), run, nil}
}

// post is a route that may make changes.
func post[P, T any](h *handler, path, summary string, do changing[P, T]) route {
	run := func(ctx context.Context, c echo.Context) (any, error) {
		var p P
		if err := decode(c, &p); err != nil {
			return nil, err
		}
		return do(ctx, h.Pool, p, h.requesterOf(c))
	}
	return route{http.MethodPost, path, summary, *new(P), reflect.TypeFor[T](), run, nil}
}

// put is a route with which a reader reports its own progress. A repeated request does no harm, so
// it needs no idempotency key.
func put[P, T any](h *handler, path, summary string, do changing[P, T]) route {
	r := post(h, path, summary, do)
	r.method = http.MethodPut
	return r
}

// postEffect is a route that changes one effect and returns it.
func postEffect[P any](h *handler, path, summary string, do deciding[P]) route {
	run := func(ctx context.Context, c echo.Context) (any, error) {
		var of idParams
		if err := decodePath(c, &of); err != nil {
			return nil, err
		}
		var p P
		if err := decodeBody(c, &p); err != nil {
			return nil, err
		}
		by := h.requesterOf(c)
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
	}
	return route{http.MethodPost, path, summary, *new(P), reflect.TypeFor[effects.View](), run, nil}
}

// severalEffects makes an operation that changes the effects that its parameters name.
func severalEffects(do deciding[operations.ReasonParams]) changing[operations.EffectsParams,
	events.Page[effects.View]] {
	return func(ctx context.Context, pool *pgxpool.Pool, p operations.EffectsParams,
		by operations.Requester) (page events.Page[effects.View], err error) {
		if store := by.StoreResult; store != nil {
			by.StoreResult = func(ctx context.Context, tx pgx.Tx, all any) error {
				return store(ctx, tx, events.Page[effects.View]{Items: all.([]effects.View)})
			}
		}
		page.Items, err = do(ctx, pool, p.IDs, p.ReasonParams, by)
		return page, err
	}
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
func byID[T any](show func(context.Context, postgres.DB, int64) (T, error)) reading[idParams, T] {
	return func(ctx context.Context, pool *pgxpool.Pool, p idParams) (T, error) { return show(ctx, pool, p.ID) }
}

func byName[T any](show func(context.Context, postgres.DB, string) (T, error)) reading[nameParams, T] {
	return func(ctx context.Context, pool *pgxpool.Pool, p nameParams) (T, error) { return show(ctx, pool, p.Name) }
}

// me is an operation that depends on the caller only.
func (h *handler) me(_ context.Context, c echo.Context) (any, error) {
	if err := decode(c, &none{}); err != nil {
		return nil, err
	}
	return operations.Me(h.requesterOf(c).Actor, callerOf(c).role, h.ProcessID), nil
}

// withEndpoints makes an operation of one that reads events as the sources of this process define.
// Its endpoints are nil in a process without sources.
func withEndpoints[P, T any](h *handler, do func(context.Context, *pgxpool.Pool, []config.Endpoint, P) (T,
	error)) reading[P, T] {
	return func(ctx context.Context, pool *pgxpool.Pool, p P) (T, error) {
		var endpoints []config.Endpoint
		if h.Endpoints != nil {
			endpoints = append([]config.Endpoint{}, h.Endpoints()...) // not nil
		}
		return do(ctx, pool, endpoints, p)
	}
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

func (h *handler) examine(ctx context.Context, _ *pgxpool.Pool, _ none) (*operations.DoctorReport, error) {
	return h.Doctor.Examine(ctx)
}

func (h *handler) rejection(ctx context.Context, pool *pgxpool.Pool, p idParams) (*operations.RejectionView, error) {
	return operations.Rejection(ctx, pool, h.endpoints(), p.ID)
}

// endpoints returns the currently configured sources; none where this process has none.
func (h *handler) endpoints() []config.Endpoint {
	if h.Endpoints == nil {
		return nil
	}
	return h.Endpoints()
}

func (h *handler) verifyRejections(ctx context.Context, pool *pgxpool.Pool, p operations.RejectionSelection,
	_ operations.Requester) (*operations.RejectionResults, error) {
	return h.Reprocessor.Verify(ctx, pool, p)
}

// replayBody are the parameters of a replay. The reference has the comments of these fields.
type replayBody struct {
	operations.ReplayParams
	// true: return only how much is selected
	Preview bool `json:"preview,omitzero"`
	// with preview, true: count instead of estimating
	Exact bool `json:"exact,omitzero"`
	// true: decide everything, write nothing, and return the changes
	DryRun bool `json:"dry_run,omitzero"`
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

// retryBody are the parameters of a retry. The reference has the comments of these fields.
type retryBody struct {
	operations.RetryParams
	// true: return only how much is selected
	Preview bool `json:"preview,omitzero"`
	// with preview, true: count instead of estimating
	Exact bool `json:"exact,omitzero"`
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
var errDryRunBusy = NewProblem("busy", "")

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

// rules returns the configured effect rules; nil in a process without rules.
func (h *handler) rules() []*rules.Rule {
	if h.Rules == nil {
		return nil
	}
	return h.Rules()
}

func (h *handler) backtest(ctx context.Context, pool *pgxpool.Pool,
	p operations.BacktestParams) (*operations.BacktestResult, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if h.Endpoints == nil || h.Rules == nil {
		return nil, fmt.Errorf("%w: this process has no rules; use postern effects backtest --config FILE",
			events.ErrInvalid)
	}
	all := h.Rules()
	i := slices.IndexFunc(all, func(r *rules.Rule) bool { return r.Name == p.Rule })
	if i < 0 {
		return nil, fmt.Errorf("rule %q: %w", p.Rule, events.ErrNotFound)
	}
	if !h.dryRunMu.TryLock() {
		return nil, errDryRunBusy
	}
	defer h.dryRunMu.Unlock()
	return operations.BacktestEffects(ctx, pool, h.Endpoints(), all[i], p.Since)
}
