package processor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// announceSQL takes one page of objects after the given key, in key order, and inserts them as one
// row of the outbox. The row is a minute old at once, so that the next resend publishes it, unless
// changes.publish_after is longer. It is not older, because age is the sign that nothing publishes.
const announceSQL = `
WITH page AS MATERIALIZED (
  SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
  WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.version_at > -9223372036854775808
    AND ($5::int = 0 OR o.source = $5) AND ($6::text = '' OR o.object_type = $6)
  ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7
), put AS (
  INSERT INTO outbox (sources, accounts, types, ids, created_at, numbered, forward_pending)
  SELECT array_agg(p.source), array_agg(p.account), array_agg(p.object_type), array_agg(p.object_id),
  	clock_now() - interval '1 minute', true, true
  FROM page p HAVING count(*) > 0
)
SELECT p.source, p.account, p.object_type, p.object_id, (SELECT count(*) FROM page)
FROM page p ORDER BY p.source DESC, p.account DESC, p.object_type DESC, p.object_id DESC LIMIT 1`

// announcePageSize is the number of objects in one row of the outbox.
const announcePageSize = 200

// Announce makes the running processors publish every object of the mirror to the feed of changes
// again, with its current revision. It serves a new consumer, and a stream that lost more than the
// outbox retains. Source 0 and type "" select all. It returns the number of objects that will be
// announced. A second call after an error announces some objects twice, which is harmless.
func Announce(ctx context.Context, pool *pgxpool.Pool, source int32, objectType string) (objects int, err error) {
	var last struct {
		source              int32
		account, typ, objID string
	}
	for {
		var n int
		err := pool.QueryRow(ctx, announceSQL, last.source, last.account, last.typ, last.objID, source, objectType,
			announcePageSize).Scan(&last.source, &last.account, &last.typ, &last.objID, &n)
		if errors.Is(err, pgx.ErrNoRows) {
			return objects, nil
		}
		if err != nil {
			return objects, fmt.Errorf("announce objects after %s %s: %w", last.typ, last.objID, err)
		}
		objects += n
	}
}
