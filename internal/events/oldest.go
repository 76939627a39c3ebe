package events

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// oldestSQL reads the lower ends of the partitions' ranges; one that is being detached counts no more.
const oldestSQL = `
SELECT coalesce(min((regexp_match(pg_get_expr(p.relpartbound, p.oid), 'FROM \(''?(\d+)''?\)'))[1]::bigint), 0)
FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhrelid WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending`

// Oldest is the least id that the log could hold: where its oldest partition begins. What was below it has been dropped.
func Oldest(ctx context.Context, pool *pgxpool.Pool) (id int64, err error) {
	if err := pool.QueryRow(ctx, oldestSQL).Scan(&id); err != nil {
		return 0, fmt.Errorf("find the oldest partition of the log: %w", err)
	}
	return id, nil
}
