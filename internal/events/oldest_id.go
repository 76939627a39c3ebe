package events

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// oldestIDSQL reads the lower ends of the partitions' ranges. It ignores a partition that is being
// detached.
const oldestIDSQL = `
SELECT coalesce(min((regexp_match(pg_get_expr(p.relpartbound, p.oid), 'FROM \(''?(\d+)''?\)'))[1]::bigint), 0)
FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass
	AND NOT i.inhdetachpending`

// OldestID returns the smallest id that the log can have: the start of its oldest partition. Events
// below it were dropped.
func OldestID(ctx context.Context, pool *pgxpool.Pool) (id int64, err error) {
	if err := pool.QueryRow(ctx, oldestIDSQL).Scan(&id); err != nil {
		return 0, fmt.Errorf("find the oldest partition of the log: %w", err)
	}
	return id, nil
}
