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

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ReconcileParams say what to hold against the provider's API: with an object that object, with a type or objects all objects of the type or of every type, else the events that the
// provider says it has sent.
var ReconcileParams = append([]Param{
	{"source", "name of the source"},
	{"account", "tenant inside the source (Stripe account, Shopify shop); left out or empty: the one that the key is of"},
	{"all_accounts", "true: a run for each account that the configuration or the mirror knows, entered by the processor that takes this one"},
	{"objects", "true: all objects that the API lists, of the type or of every type; false: the events that the provider says it has sent"},
	{"type", "type of the object to look at; without an object all objects of the type"},
	{"object_type", "the same as type, named as in the other lists"},
	{"object_id", "id of the object to look at; with its type"},
	{"full", "true: list all objects, also where the API could tell of those that changed, and look for those that are not there any more"},
	{"since", "events, or changes of objects, from this time of the provider's on (left out: from what is proven, or as far back as the provider knows): " + timeHelp},
	{"until", "events, or changes of objects, before this time of the provider's (left out: up to now): " + timeHelp},
	{"dry_run", "true or false"},
}, onceParams...)

// Reconcile enters a reconciliation into the ledger by ReconcileParams; a running processor carries it out. A run that
// no processor's configuration lets succeed is not entered. Errors: events.ErrInvalid.
func Reconcile(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*Asked, error) {
	q := newQuery(ctx, pool, values, ReconcileParams)
	o := q.reconcile()
	if q.err != nil {
		return nil, q.err
	}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	return ask(ctx, pool, by, "reconcile", runs.Order{Job: reconcile.Job, Asked: o}, values)
}

// reconcile is the order of ReconcileParams.
func (q *query) reconcile() *reconcile.Order {
	o := &reconcile.Order{Source: q.source(), Account: q.text("account"), What: reconcile.Events, Type: q.either("type", "object_type"), ID: q.text("object_id"),
		Since: q.time("since"), Until: q.time("until"), Words: map[string]string{}}
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
		o.What = reconcile.Object
	case o.Type != "" || all != nil && *all:
		o.What = reconcile.Objects
	}
	switch {
	case q.text("source") == "":
		q.fail("name the source to reconcile")
	case o.AllAccounts && (q.values.Has("account") || o.ID != ""):
		q.fail("all_accounts, and an account or object that is named: give the one or the other")
	case all != nil && *all != (o.What == reconcile.Objects):
		q.fail("objects=%t and the object or type that is named: give the one or the other", *all)
	case o.Full && o.What != reconcile.Objects:
		q.fail("full says how objects are listed: name a type, or ask for objects")
	case o.Full && bounded:
		q.fail("since and until bound what changed; full is everything")
	case o.ID != "" && o.Type == "":
		q.fail("object %q: name its type too", o.ID)
	case o.ID != "" && bounded:
		q.fail("since and until bound events; an object is looked at as it is now")
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		q.fail("since %q is not before until %q", q.text("since"), q.text("until"))
	}
	for name := range q.values {
		if !slices.ContainsFunc(onceParams, func(p Param) bool { return p.Name == name }) {
			o.Words[name] = q.text(name)
		}
	}
	return o
}

// HintParams choose hints.
var HintParams = []Param{sourceParam, limitParam, cursorParam}

// Hints lists the objects that owe a look, by HintParams. Errors: events.ErrInvalid.
func Hints(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[reconcile.HintView], error) {
	q := newQuery(ctx, pool, values, HintParams)
	source, limit := q.source(), q.limit()
	if q.err != nil {
		return events.Page[reconcile.HintView]{}, q.err
	}
	return reconcile.Hints(ctx, pool, source, q.text("cursor"), limit)
}

// WishParams say which object is to be looked at, and why.
var WishParams = append(slices.Clone(objectParams), Param{"reason", "why; kept with the look"})

// Wish has an object looked at by a running processor, by WishParams. Errors: events.ErrInvalid, *SeveralObjectsError.
func Wish(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*reconcile.HintView, error) {
	k, err := newQuery(ctx, pool, values, WishParams).objectKey()
	if err != nil {
		return nil, err
	}
	read, err := reconcile.Read(ctx, pool, k.Source)
	if err != nil {
		return nil, err
	}
	if !read {
		return nil, fmt.Errorf("%w: no processor reads the API of source %s, so nobody would look: give the source a section api (docs/reconciliation.md), and ask again once a processor has read the configuration", events.ErrInvalid, values.Get("source"))
	}
	by.Reason = values.Get("reason")
	return change(ctx, pool, by, "hints add", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*reconcile.HintView, error) {
		e.Target = named(k, values)
		return reconcile.Wish(ctx, tx, k, by.String(), cmp.Or(by.Reason, "asked for"))
	})
}

// ForgetHint takes a hint back, by the object's name. Errors: events.ErrInvalid, events.ErrNotFound, *SeveralObjectsError.
func ForgetHint(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*reconcile.HintView, error) {
	k, err := newQuery(ctx, pool, values, DropHintParams).objectKey()
	if err != nil {
		return nil, err
	}
	by.Reason = values.Get("reason")
	return change(ctx, pool, by, "hints drop", func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*reconcile.HintView, error) {
		e.Target = named(k, values)
		return reconcile.Forget(ctx, tx, k)
	})
}

// DropHintParams say which object's hint is taken back.
var DropHintParams = append(slices.Clone(objectParams), reasonParam)

// named is an object for the audit.
func named(k versioning.Key, values url.Values) string {
	said := url.Values{"source": {values.Get("source")}, "type": {k.Type}, "object_id": {k.ID}}
	if k.Account != "" {
		said.Set("account", k.Account)
	}
	return said.Encode()
}

// WatermarkParams choose watermarks.
var WatermarkParams = []Param{sourceParam, limitParam, cursorParam}

// Watermarks lists until when what is proven complete, by WatermarkParams. Errors: events.ErrInvalid.
func Watermarks(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[reconcile.Proven], error) {
	q := newQuery(ctx, pool, values, WatermarkParams)
	source, limit := q.source(), q.limit()
	if q.err != nil {
		return events.Page[reconcile.Proven]{}, q.err
	}
	return reconcile.Watermarks(ctx, pool, source, q.text("cursor"), limit)
}

// DifferenceParams choose differences of a run.
var DifferenceParams = []Param{{"kind", "missing, behind, different, ghost"}, {"result", "mended, left"}, limitParam, cursorParam}

// Differences lists the objects at which a run has found the mirror to differ from the provider, by DifferenceParams. Errors: events.ErrInvalid.
func Differences(ctx context.Context, pool *pgxpool.Pool, run int64, values url.Values) (events.Page[reconcile.Difference], error) {
	q := newQuery(ctx, pool, values, DifferenceParams)
	kind, result, limit := q.oneOf("kind", "missing", "behind", "different", "ghost"), q.oneOf("result", "mended", "left"), q.limit()
	if q.err != nil {
		return events.Page[reconcile.Difference]{}, q.err
	}
	return reconcile.Differences(ctx, pool, run, kind, result, q.text("cursor"), limit)
}

// reconcileRoutes takes orders for reconciliations, and tells what is owed and what is proven.
func (h *handler) reconcileRoutes(api *echo.Group) {
	api.POST("/reconciliations", h.show(h.reconcile), fromOurselves, h.once)
	api.GET("/hints", list(h, Hints))
	api.POST("/hints", h.show(h.wish), fromOurselves, h.once)
	api.POST("/hints/drop", h.show(h.forgetHint), fromOurselves, h.once)
	api.POST("/objects/settle", h.show(h.settle), fromOurselves, h.once)
	api.GET("/watermarks", list(h, Watermarks))
	api.GET("/runs/:run/drift", h.show(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return reconcile.Drift(ctx, h.Pool, run)
	}))
	api.GET("/runs/:run/differences", h.show(func(ctx context.Context, c echo.Context, values url.Values) (any, error) {
		run, err := runNumber(c)
		if err != nil {
			return nil, err
		}
		return Differences(ctx, h.Pool, run, values)
	}))
}

// reconcile takes {"source": "stripe", "since": "6h", "dry_run": true, "reason": "..."}, {"source": "stripe", "type": "customer", "object_id": "cus_1"}, or
// {"source": "stripe", "type": "customer", "full": true}.
func (h *handler) reconcile(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: what to reconcile is said in the body, not in the address", events.ErrInvalid)
	}
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return Reconcile(ctx, h.Pool, values, by(c))
}

// wish takes {"source": "stripe", "type": "customer", "object_id": "cus_1", "reason": "..."}.
func (h *handler) wish(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return Wish(ctx, h.Pool, values, by(c))
}

// forgetHint takes {"source": "stripe", "type": "customer", "object_id": "cus_1"}.
func (h *handler) forgetHint(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return ForgetHint(ctx, h.Pool, values, by(c))
}
