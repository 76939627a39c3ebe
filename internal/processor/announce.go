package processor

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/postgres"
)

// announceSQL inserts rows of the outbox for objects in key order, each for one source, because a
// process forwards a row only if it has all of its sources. The rows are a minute old at
// once, so that the next resend publishes them, unless changes.publish_after is longer. They are
// not older, because age is the sign that nothing publishes.
const announceSQL = `
WITH numbered AS (
  SELECT o.source, o.account, o.object_type, o.object_id,
    (row_number() OVER (PARTITION BY o.source ORDER BY o.account, o.object_type, o.object_id) - 1) / $3 AS page
  FROM objects o
  WHERE o.version_at > -9223372036854775808 AND ($1::int = 0 OR o.source = $1) AND ($2::text = '' OR o.object_type = $2)
), put AS (
  INSERT INTO outbox (sources, accounts, types, ids, created_at, numbered, forward_pending)
  SELECT array_agg(n.source), array_agg(n.account), array_agg(n.object_type), array_agg(n.object_id),
    clock_now() - interval '1 minute', true, true
  FROM numbered n GROUP BY n.source, n.page ORDER BY n.source, n.page
  RETURNING cardinality(ids) AS objects
)
SELECT coalesce(sum(put.objects), 0) FROM put`

// announcePageSize is the number of objects in one row of the outbox.
const announcePageSize = 200

// Announce makes the running processors publish every object of the mirror to the feed of changes
// again, with its current revision. It serves a new consumer, and a stream that lost more than the
// outbox retains. Source 0 and type "" select all. It returns the number of objects that will be
// announced.
func Announce(ctx context.Context, db postgres.DB, source int32, objectType string) (objects int, err error) {
	if err := db.QueryRow(ctx, announceSQL, source, objectType, announcePageSize).Scan(&objects); err != nil {
		return 0, fmt.Errorf("announce objects: %w", err)
	}
	return objects, nil
}
