package changes

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// beforeSQL finds the last change before a time by bisection: the times never decrease in the order
// of the numbers. It also says whether each earlier change has its number.
const beforeSQL = `
WITH RECURSIVE search(low, high) AS (
  SELECT 0::bigint, f.newest + 1 FROM change_feed f
  UNION ALL
  SELECT CASE WHEN c.earlier THEN s.middle ELSE s.low END, CASE WHEN c.earlier THEN s.high ELSE s.middle END
  FROM (SELECT low, high, (low + high) / 2 AS middle FROM search WHERE high - low > 1) s CROSS JOIN LATERAL (
    SELECT coalesce((SELECT c.changed_at < $1 FROM changes c WHERE c.number >= s.middle ORDER BY c.number LIMIT 1),
      false) AS earlier) c
)
SELECT (SELECT low FROM search WHERE high - low <= 1),
  NOT EXISTS (SELECT FROM outbox o WHERE NOT o.numbered AND o.created_at < $1)`

// NumberBefore returns the number of the last change before a time. numbered is false if a change
// before the time has no number yet. An earlier change may have a higher number if its transaction
// was concurrent, or if another one had locked its row of the outbox. A change by a swap counts as
// up to processor.changes.publish_after earlier.
func NumberBefore(ctx context.Context, tx pgx.Tx, at time.Time) (number int64, numbered bool, err error) {
	// The outbox grows and shrinks, so its plan is not cached.
	if err := tx.QueryRow(ctx, beforeSQL, pgx.QueryExecModeExec, at).Scan(&number, &numbered); err != nil {
		return 0, false, fmt.Errorf("find the last change before %s: %w", at.UTC().Format(time.RFC3339), err)
	}
	return number, numbered, nil
}
