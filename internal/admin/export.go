package admin

import (
	"context"
	"net/url"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// ParseExportFilter reads StoredEventParams. Errors: events.ErrInvalid.
func ParseExportFilter(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Filter, error) {
	q := newQuery(ctx, pool, values, StoredEventParams)
	f := q.storedEventFilter()
	return f, q.err
}
