package versioning

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Match is an object with a given id, without its state.
type Match struct {
	Source     string
	Account    string
	ObjectType string
	ObjectID   string
	Deleted    bool
	UpdatedAt  events.Instant
}

// maxHops is how many pairs of account and type a search for an id tries.
const maxHops = 10_000

// findIDSQL walks the sources, accounts and types through the primary key, because no index begins
// with the id. Each costs two index lookups. The last hop is returned too, to tell that there may
// be more.
const findIDSQL = `
WITH RECURSIVE hop(n, source, account, object_type) AS (
  (SELECT 1, o.source, o.account, o.object_type FROM objects o ORDER BY o.source, o.account, o.object_type LIMIT 1)
  UNION ALL
  SELECT hop.n + 1, k.source, k.account, k.object_type FROM hop CROSS JOIN LATERAL (
    SELECT o.source, o.account, o.object_type FROM objects o
    WHERE (o.source, o.account, o.object_type) > (hop.source, hop.account, hop.object_type)
    ORDER BY o.source, o.account, o.object_type LIMIT 1) k
  WHERE hop.n < $2
)
SELECT coalesce(s.name, ''), hop.account, hop.object_type, coalesce(f.object_id, ''), coalesce(f.deleted, false),
  f.updated_at, hop.n = $2
FROM hop LEFT JOIN LATERAL (
  SELECT o.object_id, o.deleted, o.updated_at FROM objects o WHERE o.source = hop.source AND o.account = hop.account
    AND o.object_type = hop.object_type AND o.object_id = $1 LIMIT 1) f ON true
LEFT JOIN sources s ON s.number = hop.source
WHERE f.object_id IS NOT NULL OR hop.n = $2 LIMIT $3`

// FindID returns at most limit objects with an id, of any source, account and type. more reports
// that it has not searched everything.
func FindID(ctx context.Context, db postgres.Querier, id string, limit int) (found []Match, more bool, err error) {
	return findID(ctx, db, id, maxHops, limit)
}

func findID(ctx context.Context, db postgres.Querier, id string, hops, limit int) (found []Match, more bool,
	err error) {
	rows, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[hopMatch], findIDSQL, id, hops, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("find objects with an id: %w", err)
	}
	for _, r := range rows {
		more = more || r.Last
		switch {
		case r.ObjectID == "":
		case len(found) == limit:
			more = true
		default:
			found = append(found, r.Match)
		}
	}
	return found, more, nil
}

// hopMatch is a match, or no match at the last hop.
type hopMatch struct {
	Match
	Last bool
}
