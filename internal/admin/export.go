package admin

import (
	"context"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// ExportParams choose what to export: as ReplayParams, but for how a replay goes on.
var ExportParams = slices.DeleteFunc(slices.Clone(ReplayParams), func(p Param) bool { return p.Name == "rate" || p.Name == "reason" })

// PlanExport reads ExportParams. Errors: events.ErrInvalid.
func PlanExport(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Filter, error) {
	q := newQuery(ctx, pool, values, ExportParams)
	f := q.chosen()
	return f, q.err
}
