package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

const forgetChangesSQL = `DELETE FROM outbox WHERE sent_at < clock_now() - $1::interval`

const vacuumOutboxSQL = `VACUUM (SKIP_LOCKED) outbox`

// partitionsAhead is how far ahead the log's partitions are made.
const partitionsAhead = 8 * 24 * time.Hour

// leastAhead is how far ahead partitions must be made: with less, somebody must look why maintenance makes none.
const leastAhead = 7 * 24 * time.Hour

// Maintain makes partitions ahead and keeps the outbox small, until ctx ends, over a connection of the maintenance role. Several
// processes may do it at once. Trouble is logged and tried again: appends make a missing partition themselves.
func (p *Processor) Maintain(ctx context.Context, keeper *pgxpool.Pool) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		if err := p.maintain(ctx, keeper); err != nil && ctx.Err() == nil {
			p.Logger.Warn("maintenance not done; tried again in a minute", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *Processor) maintain(ctx context.Context, keeper *pgxpool.Pool) error {
	made := events.EnsurePartitions(ctx, keeper, partitionsAhead)
	return errors.Join(made, p.watchPartitions(ctx), forgetChanges(ctx, keeper, p.Settings.KeepChanges))
}

// watchPartitions tells until when there are partitions, and complains where that is too soon, whoever was to make them.
func (p *Processor) watchPartitions(ctx context.Context) error {
	until, left, err := events.PartitionsUntil(ctx, p.Pool)
	if err != nil {
		return err
	}
	p.metrics.partitions.Set(float64(until.Unix()))
	if left < leastAhead {
		p.Logger.Error("the log's partitions end too soon: appends make the one they need, but see why maintenance made none ahead", "until", until, "left", left.Round(time.Minute))
	}
	return nil
}

func forgetChanges(ctx context.Context, keeper *pgxpool.Pool, keep time.Duration) error {
	tag, err := keeper.Exec(ctx, forgetChangesSQL, keep)
	if err != nil {
		return fmt.Errorf("forget sent changes: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := keeper.Exec(ctx, vacuumOutboxSQL); err != nil {
		return fmt.Errorf("vacuum outbox: %w", err)
	}
	return nil
}

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	return append(listStatements(), openSQL, hadOutcomeSQL, heldSQL, holdSQL, releaseHeldSQL, lockSQL, tryLockSQL, outcomesSQL, recordSQL, giveBackSQL, probeSQL, keepChangesSQL, sentSQL, unsentSQL, nowSQL, currentSQL, lastSentSQL,
		unsendSQL, leaseSQL, releaseSQL, advanceSQL, withOutcomeSQL, importedSQL, dueSQL, forgetChangesSQL, announceSQL, backlogSQL, statusesSQL, finishedSQL, objectsOfSQL, copyBasesSQL, redactedSQL, pendingSQL, awaitedSQL,
		recallSQL, settledAheadSQL, readGapsSQL, keepGapsSQL, closedSQL, provenTypesSQL, wantedSQL, wantSQL, passSQL, renewSQL, healSQL, auditSQL, unappliedSQL, laterSQL)
}
