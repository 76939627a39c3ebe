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

// objectParams name an object, which need not be in the mirror.
var objectParams = []Param{
	{"source", "name of the source"},
	{"account", "tenant inside the source (Stripe account, Shopify shop); left out: the one that has the object in the mirror, else the one that the key is of"},
	{"type", "type of the object"},
	{"object_type", "the same as type, named as in the other lists"},
	{"object_id", "id of the object"},
}

// objectKey is the object that objectParams name.
func (q *query) objectKey() (versioning.Key, error) {
	k := versioning.Key{Source: q.source(), Account: q.text("account"), Type: q.either("type", "object_type"), ID: q.text("object_id")}
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

// SettleParams say which object a look is to settle, and why.
var SettleParams = slices.Concat(objectParams, onceParams)

// Settle enters a look that wins over all that was known of an object, by SettleParams; a running processor makes it. A reason must be given. Errors:
// events.ErrInvalid, *SeveralObjectsError.
func Settle(ctx context.Context, pool *pgxpool.Pool, values url.Values, by By) (*Asked, error) {
	q := newQuery(ctx, pool, values, SettleParams)
	if strings.TrimSpace(q.text("reason")) == "" {
		q.fail("say why with a reason: it is kept with the look that wins")
	}
	k, err := q.objectKey()
	if err != nil {
		return nil, err
	}
	words := map[string]string{"settle": "true", "source": q.text("source"), "account": k.Account, "type": k.Type, "object_id": k.ID}
	values = maps.Clone(values)
	values.Set("settle", "true") // under one key it is no order for a mere look
	o := &reconcile.Order{Source: k.Source, Account: k.Account, What: reconcile.Object, Type: k.Type, ID: k.ID, Settle: true, Words: words}
	if err := reconcile.CheckReadable(ctx, pool, o); err != nil {
		return nil, err
	}
	return ask(ctx, pool, by, "objects settle", runs.Order{Job: reconcile.Job, Asked: o}, values)
}

// settle takes {"source": "stripe", "type": "customer", "object_id": "cus_1", "reason": "..."}.
func (h *handler) settle(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
	values, err := asked(c.Request().Body)
	if err != nil {
		return nil, err
	}
	return Settle(ctx, h.Pool, values, by(c))
}
