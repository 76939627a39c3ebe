package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// deleteSentChangesSQL keeps a change whose forwards are not planned. Without forwards in the
// configuration, no process plans them, so the row is deleted after a week.
const deleteSentChangesSQL = `
WITH locked AS MATERIALIZED (
  SELECT o.batch FROM outbox o WHERE o.sent_at < clock_now() - $1::interval AND o.numbered
    AND (NOT o.forward_pending OR o.sent_at < clock_now() - interval '7 days') ORDER BY o.batch FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox o USING locked l WHERE o.batch = l.batch`

const vacuumOutboxSQL = `VACUUM (SKIP_LOCKED) outbox`

// partitionsAhead is how far ahead partitions of the log are created.
const partitionsAhead = 8 * 24 * time.Hour

// minPartitionsAhead is the least time for which partitions must exist. With less, an operator must
// find out why maintenance creates none.
const minPartitionsAhead = 7 * 24 * time.Hour

// Maintain creates partitions ahead of time and keeps the outbox small until ctx ends. The pool is
// connected as the maintenance role. Several processes may run it at once. Failures are logged and
// retried: appends create a missing partition themselves.
func (p *Processor) Maintain(ctx context.Context, maintenancePool *pgxpool.Pool) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if err := p.maintain(ctx, maintenancePool); err != nil && ctx.Err() == nil {
			p.Logger.Warn("maintenance failed; retried in a minute", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *Processor) maintain(ctx context.Context, maintenancePool *pgxpool.Pool) error {
	partitionsErr := events.EnsurePartitions(ctx, maintenancePool, partitionsAhead)
	return errors.Join(partitionsErr, p.watchPartitions(ctx), deleteSentChanges(ctx, maintenancePool,
		p.Settings.ChangeRetention))
}

// watchPartitions sets the metric of the time until which partitions exist, and logs an error if
// they end too soon.
func (p *Processor) watchPartitions(ctx context.Context) error {
	until, left, err := events.PartitionsUntil(ctx, p.Pool)
	if err != nil {
		return err
	}
	p.metrics.partitions.Set(float64(until.Unix()))
	if left < minPartitionsAhead {
		p.Logger.Error("the log's partitions end too soon: appends create a missing one, but find out why "+
			"maintenance creates none ahead", "until", until, "left", left.Round(time.Minute))
	}
	return nil
}

func deleteSentChanges(ctx context.Context, maintenancePool *pgxpool.Pool, retention time.Duration) error {
	tag, err := maintenancePool.Exec(ctx, deleteSentChangesSQL, retention)
	if err != nil {
		return fmt.Errorf("delete sent changes: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := maintenancePool.Exec(ctx, vacuumOutboxSQL); err != nil {
		return fmt.Errorf("vacuum outbox: %w", err)
	}
	return nil
}
