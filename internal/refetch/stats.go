package refetch

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Stats are the numbers of a source's refetch requests.
type Stats struct {
	Source              string
	Requests, Suspended float64
	// OldestWait is for how many seconds the request that has been due for longest has waited.
	OldestWait float64
}

const refetchStatsSQL = `
SELECT s.name, count(h.source)::float8, (count(*) FILTER (WHERE h.due = 'infinity'))::float8,
  coalesce(extract(epoch FROM clock_now() - min(h.due) FILTER (WHERE h.due <= clock_now())), 0)::float8
FROM sources s LEFT JOIN refetch_requests h ON h.source = s.number WHERE s.name = ANY($1::text[]) GROUP BY s.name
	ORDER BY s.name`

// ReadStats returns the numbers of the refetch requests of some sources.
func ReadStats(ctx context.Context, pool *pgxpool.Pool, sources []string) (all []Stats, err error) {
	all, err = postgres.Collect(ctx, pool, pgx.RowToStructByPos[Stats], refetchStatsSQL, sources)
	if err != nil {
		return nil, fmt.Errorf("count refetch requests: %w", err)
	}
	return all, nil
}
