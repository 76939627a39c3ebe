package processor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// announceSQL puts one page of objects, in the order of their keys after the given one, into the outbox as if they had waited
// for the sweep already.
const announceSQL = `
WITH page AS MATERIALIZED (
  SELECT o.source, o.account, o.object_type, o.object_id FROM objects o
  WHERE (o.source, o.account, o.object_type, o.object_id) > ($1, $2, $3, $4) AND o.version_at > -9223372036854775808
    AND ($5::int = 0 OR o.source = $5) AND ($6::text = '' OR o.object_type = $6)
  ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7
), put AS (
  INSERT INTO outbox (sources, accounts, types, ids, made_at)
  SELECT array_agg(p.source), array_agg(p.account), array_agg(p.object_type), array_agg(p.object_id), clock_now() - interval '1 day'
  FROM page p HAVING count(*) > 0
)
SELECT p.source, p.account, p.object_type, p.object_id, (SELECT count(*) FROM page)
FROM page p ORDER BY p.source DESC, p.account DESC, p.object_type DESC, p.object_id DESC LIMIT 1`

// announcePage is how many objects go into one row of the outbox.
const announcePage = 200

// Announce asks the running processors to send every object of the mirror to the feed of changes again, with its present
// revision: for a consumer that starts anew, or after the stream lost more than the outbox keeps. source 0 and type "" mean all.
// It returns how many objects will be announced; called again after an error it announces some twice, which is harmless.
func Announce(ctx context.Context, pool *pgxpool.Pool, source int32, objectType string) (objects int, err error) {
	var at struct {
		source              int32
		account, typ, objID string
	}
	for {
		var n int
		err := pool.QueryRow(ctx, announceSQL, at.source, at.account, at.typ, at.objID, source, objectType, announcePage).
			Scan(&at.source, &at.account, &at.typ, &at.objID, &n)
		if errors.Is(err, pgx.ErrNoRows) {
			return objects, nil
		}
		if err != nil {
			return objects, fmt.Errorf("announce objects after %s %s: %w", at.typ, at.objID, err)
		}
		objects += n
	}
}
