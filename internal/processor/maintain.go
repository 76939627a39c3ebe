package processor

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

const forgetChangesSQL = `DELETE FROM outbox WHERE sent_at < clock_now() - $1::interval`

const vacuumOutboxSQL = `VACUUM (SKIP_LOCKED) outbox`

// partitionsAhead is how far ahead the log's partitions are made.
const partitionsAhead = 8 * 24 * time.Hour

// Maintain makes partitions ahead and keeps the outbox small, until ctx ends, over a connection of the maintenance role. Several
// processes may do it at once. Trouble is logged and tried again: appends make a missing partition themselves.
func Maintain(ctx context.Context, pool *pgxpool.Pool, keepChanges time.Duration, log *slog.Logger) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if err := maintain(ctx, pool, keepChanges); err != nil && ctx.Err() == nil {
			log.Warn("maintenance not done; tried again in a minute", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func maintain(ctx context.Context, pool *pgxpool.Pool, keep time.Duration) error {
	if err := events.EnsurePartitions(ctx, pool, partitionsAhead); err != nil {
		return err
	}
	tag, err := pool.Exec(ctx, forgetChangesSQL, keep)
	if err != nil {
		return fmt.Errorf("forget sent changes: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := pool.Exec(ctx, vacuumOutboxSQL); err != nil {
		return fmt.Errorf("vacuum outbox: %w", err)
	}
	return nil
}

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	return append(listStatements(), lockSQL, outcomesSQL, recordSQL, giveBackSQL, probeSQL, keepChangesSQL, sentSQL, unsentSQL, nowSQL, currentSQL, lastSentSQL,
		unsendSQL, leaseSQL, releaseSQL, advanceSQL, withOutcomeSQL, dueSQL, forgetChangesSQL, announceSQL, backlogSQL, statusesSQL)
}
