package admin

import (
	"context"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// PlanExport reads StoredParams. Errors: events.ErrInvalid.
func PlanExport(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Filter, error) {
	q := newQuery(ctx, pool, values, StoredParams)
	f := q.chosen()
	return f, q.err
}
