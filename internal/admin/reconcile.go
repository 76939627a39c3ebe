package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ReconcileParams select what to compare with the provider's API. With an object, that object. With
// a type or objects, all objects of the type or of every type. Otherwise the events that the
// provider sent.
var ReconcileParams = append([]Param{
	{"source", "name of the source"},
	{"account",
		"tenant inside the source (Stripe account, Shopify shop); if empty or absent, the account of the API key"},
	{"all_accounts", "true: a run for each account that the configuration or the mirror contains, started by the " +
		"processor that executes this run"},
	{"objects",
		"true: all objects that the API lists, of one type or of every type; false: the events that the provider sent"},
	{"type", "type of the object; without an object id, all objects of the type"},
	{"object_type", "the same as type, named as in the other lists"},
	{"object_id", "id of the object; requires its type"},
	{"full", "true: list all objects, even if the API can list recent changes only, and find those that " +
		"the provider no longer has"},
	{"since", "events, or changes of objects, from this time of the provider on (default: from the time until which " +
		"the log is complete, or as far back as the provider lists them): " + timeHelp},
	{"until", "events, or changes of objects, before this time of the provider (default: now): " + timeHelp},
	{"dry_run", "true or false"},
}, requestParams...)

// Reconcile queues a reconciliation by ReconcileParams. A running processor executes it. It returns
// an error if no processor's configuration allows the run. Errors: events.ErrInvalid.
func Reconcile(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*StartedRun, error) {
	q := newQuery(ctx, pool, values, ReconcileParams)
	o := q.parseReconcile()
	if q.err != nil {
		return nil, q.err
	}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	return startRun(ctx, pool, by, "reconcile", runs.Request{Job: reconcile.Job, Params: o}, values)
}

// parseReconcile reads ReconcileParams.
func (q *query) parseReconcile() *reconcile.Params {
	o := &reconcile.Params{Source: q.source(), Account: q.text("account"), Scope: reconcile.Events,
		Type: q.either("type", "object_type"), ID: q.text("object_id"),
		Since: q.time("since"), Until: q.time("until"), Input: map[string]string{}}
	if dry := q.flag("dry_run"); dry != nil {
		o.DryRun = *dry
	}
	if each := q.flag("all_accounts"); each != nil {
		o.AllAccounts = *each
	}
	all, bounded := q.flag("objects"), !o.Since.IsZero() || !o.Until.IsZero()
	if full := q.flag("full"); full != nil {
		o.Full = *full
	}
	switch {
	case o.ID != "":
		o.Scope = reconcile.Object
	case o.Type != "" || all != nil && *all:
		o.Scope = reconcile.Objects
	}
	switch {
	case q.text("source") == "":
		q.fail("name the source to reconcile")
	case o.AllAccounts && (q.values.Has("account") || o.ID != ""):
		q.fail("all_accounts cannot be combined with an account or object: give one of them")
	case all != nil && *all != (o.Scope == reconcile.Objects):
		q.fail("objects=%t contradicts the named object or type: give one of them", *all)
	case o.Full && o.Scope != reconcile.Objects:
		q.fail("full applies to lists of objects: name a type, or set objects")
	case o.Full && bounded:
		q.fail("since and until limit changes, but full lists everything: give one of them")
	case o.ID != "" && o.Type == "":
		q.fail("object %q: name its type too", o.ID)
	case o.ID != "" && bounded:
		q.fail("since and until do not apply to one object, which is always read in its current state")
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		q.fail("since %q is not before until %q", q.text("since"), q.text("until"))
	}
	for name := range q.values {
		if !slices.ContainsFunc(requestParams, func(p Param) bool { return p.Name == name }) {
			o.Input[name] = q.text(name)
		}
	}
	return o
}

// RefetchParams select refetch requests.
var RefetchParams = []Param{sourceParam, limitParam, cursorParam}

// Refetches lists the objects that wait for a refetch, by RefetchParams. Errors: events.ErrInvalid.
func Refetches(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[refetch.Request],
	error) {
	q := newQuery(ctx, pool, values, RefetchParams)
	source, limit := q.source(), q.limit()
	if q.err != nil {
		return events.Page[refetch.Request]{}, q.err
	}
	return refetch.Requests(ctx, pool, source, q.text("cursor"), limit)
}

// AddRefetchParams name the object to refetch, and the reason.
var AddRefetchParams = append(slices.Clone(objectParams), Param{"reason", "reason; stored with the refetch request"})

// AddRefetch requests a refetch of an object by a running processor, by AddRefetchParams. Errors:
// events.ErrInvalid, *SeveralObjectsError.
func AddRefetch(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*refetch.Request,
	error) {
	k, err := newQuery(ctx, pool, values, AddRefetchParams).objectKey()
	if err != nil {
		return nil, err
	}
	readsAPI, err := providerapi.ProcessorReadsAPI(ctx, pool, k.Source)
	if err != nil {
		return nil, err
	}
	if !readsAPI {
		return nil, fmt.Errorf("%w: no processor reads the API of source %s, so it cannot refetch the object: give "+
			"the source a section api (docs/reconciliation.md), wait until a processor has read the configuration, "+
			"and try again", events.ErrInvalid, values.Get("source"))
	}
	by.Reason = values.Get("reason")
	return change(ctx, pool, by, "refetches add",
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*refetch.Request,
			error) {
			e.Target = auditTarget(k, values)
			return refetch.Add(ctx, tx, k, by.String(), cmp.Or(by.Reason, "requested"))
		})
}

// CancelRefetch cancels a refetch request, by the object's name. Errors: events.ErrInvalid,
// events.ErrNotFound, *SeveralObjectsError.
func CancelRefetch(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*refetch.Request,
	error) {
	k, err := newQuery(ctx, pool, values, CancelRefetchParams).objectKey()
	if err != nil {
		return nil, err
	}
	by.Reason = values.Get("reason")
	return change(ctx, pool, by, "refetches cancel",
		func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*refetch.Request, error) {
			e.Target = auditTarget(k, values)
			return refetch.Cancel(ctx, tx, k)
		})
}

// CancelRefetchParams name the object whose refetch request is cancelled.
var CancelRefetchParams = append(slices.Clone(objectParams), reasonParam)

// auditTarget describes an object for the audit.
func auditTarget(k versioning.Key, values url.Values) string {
	target := url.Values{"source": {values.Get("source")}, "type": {k.Type}, "object_id": {k.ID}}
	if k.Account != "" {
		target.Set("account", k.Account)
	}
	return target.Encode()
}

// WatermarkParams select watermarks.
var WatermarkParams = []Param{sourceParam, limitParam, cursorParam}

// Watermarks lists until when the log and the mirror are complete, by WatermarkParams. Errors:
// events.ErrInvalid.
func Watermarks(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[reconcile.Completeness],
	error) {
	q := newQuery(ctx, pool, values, WatermarkParams)
	source, limit := q.source(), q.limit()
	if q.err != nil {
		return events.Page[reconcile.Completeness]{}, q.err
	}
	return reconcile.Watermarks(ctx, pool, source, q.text("cursor"), limit)
}

// DifferenceParams select differences of a run.
var DifferenceParams = []Param{{"kind", "missing, mirror_older, content_differs, orphan"},
	{"result", "repaired, unrepaired"}, limitParam, cursorParam}

// Differences lists the objects for which a run found a difference between mirror and provider, by
// DifferenceParams. Errors: events.ErrInvalid.
func Differences(ctx context.Context, pool *pgxpool.Pool, run int64,
	values url.Values) (events.Page[reconcile.Difference], error) {
	q := newQuery(ctx, pool, values, DifferenceParams)
	kind, result, limit := q.oneOf("kind", "missing", "mirror_older", "content_differs", "orphan"),
		q.oneOf("result", "repaired", "unrepaired"), q.limit()
	if q.err != nil {
		return events.Page[reconcile.Difference]{}, q.err
	}
	return reconcile.Differences(ctx, pool, run, kind, result, q.text("cursor"), limit)
}

// reconcileRoutes starts reconciliations, and serves refetch requests, watermarks and differences.
func (h *handler) reconcileRoutes(api *echo.Group) {
	api.POST("/reconciliations", h.serveJSON(h.reconcile), requireJSON, h.withIdempotencyKey)
	api.GET("/refetches", list(h, Refetches))
	api.POST("/refetches", h.serveJSON(h.addRefetch), requireJSON, h.withIdempotencyKey)
	api.POST("/refetches/cancel", h.serveJSON(h.cancelRefetch), requireJSON, h.withIdempotencyKey)
	api.POST("/objects/overwrite", h.serveJSON(h.overwriteObject), requireJSON, h.withIdempotencyKey)
	api.GET("/watermarks", list(h, Watermarks))
	api.GET("/runs/:run/drift", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return reconcile.ReportDrift(ctx, h.Pool, run)
	}))
	api.GET("/runs/:run/differences", h.serveJSON(func(ctx context.Context, c echo.Context, values url.Values) (any,
		error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return Differences(ctx, h.Pool, run, values)
	}))
}

// reconcile takes {"source": "stripe", "since": "6h", "dry_run": true, "reason": "..."},
// {"source": "stripe", "type": "customer", "object_id": "cus_1"}, or {"source": "stripe", "type":
// "customer", "full": true}.
func (h *handler) reconcile(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: send the parameters of a reconciliation in the body, not in the URL",
			events.ErrInvalid)
	}
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return Reconcile(ctx, h.Pool, values, requesterOf(c))
}

// addRefetch takes {"source": "stripe", "type": "customer", "object_id": "cus_1", "reason": "..."}.
func (h *handler) addRefetch(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return AddRefetch(ctx, h.Pool, values, requesterOf(c))
}

// cancelRefetch takes {"source": "stripe", "type": "customer", "object_id": "cus_1"}.
func (h *handler) cancelRefetch(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return CancelRefetch(ctx, h.Pool, values, requesterOf(c))
}
