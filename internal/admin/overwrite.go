package admin

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// objectParams name an object, which may be missing in the mirror.
var objectParams = []Param{
	{"source", "name of the source"},
	{"account", "tenant inside the source (Stripe account, Shopify shop); if absent, the account that has the object " +
		"in the mirror, else the account of the API key"},
	{"type", "type of the object"},
	{"object_type", "the same as type, named as in the other lists"},
	{"object_id", "id of the object"},
}

// objectKey returns the object that objectParams name.
func (q *query) objectKey() (versioning.Key, error) {
	k := versioning.Key{Source: q.source(), Account: q.text("account"), Type: q.either("type", "object_type"),
		ID: q.text("object_id")}
	if q.err == nil && (k.Source == 0 || k.Type == "" || k.ID == "") {
		q.fail("name the object: its source, type and id")
	}
	if q.err != nil || q.values.Has("account") {
		return k, q.err
	}
	found, err := versioning.FindObjects(q.ctx, q.pool, k.Source, nil, k.Type, k.ID)
	switch {
	case err != nil:
		return k, err
	case len(found) > 1:
		return k, &SeveralObjectsError{Matches: found}
	case len(found) == 1:
		k.Account = found[0].Account
	}
	return k, nil
}

// OverwriteParams name the object to overwrite, and the reason.
var OverwriteParams = slices.Concat(objectParams, requestParams)

// OverwriteObject queues a run that overwrites an object from the provider: the API's current
// response wins over all local history. A running processor executes it. A reason is required.
// Errors: events.ErrInvalid, *SeveralObjectsError.
func OverwriteObject(ctx context.Context, pool *pgxpool.Pool, values url.Values, by Requester) (*StartedRun, error) {
	q := newQuery(ctx, pool, values, OverwriteParams)
	if strings.TrimSpace(q.text("reason")) == "" {
		q.fail("give a reason: it is stored with the run")
	}
	k, err := q.objectKey()
	if err != nil {
		return nil, err
	}
	input := map[string]string{"overwrite": "true", "source": q.text("source"), "account": k.Account, "type": k.Type,
		"object_id": k.ID}
	values = maps.Clone(values)
	values.Set("overwrite", "true") // so that a plain reconciliation with the same key is a different request
	o := &reconcile.Params{Source: k.Source, Account: k.Account, Scope: reconcile.Object, Type: k.Type, ID: k.ID,
		Overwrite: true, Input: input}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	return startRun(ctx, pool, by, "objects overwrite", runs.Request{Job: reconcile.Job, Params: o}, values)
}

// overwriteObject takes {"source": "stripe", "type": "customer", "object_id": "cus_1", "reason":
// "..."}.
func (h *handler) overwriteObject(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return OverwriteObject(ctx, h.Pool, values, requesterOf(c))
}
