package retention

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// Limits of one statement, so that none holds locks or loads the server for long.
const (
	expireRows   = 10_000
	expireBlocks = 2048 // 16 MiB of a table
)

const oldestSQL = `SELECT coalesce(min(id), 9223372036854775807) FROM events`

// expire deletes rows that are past their age, and never rows of events that are still in the log.
func (w *work) expire(ctx context.Context) error {
	var oldest int64
	if err := w.conn.QueryRow(ctx, oldestSQL).Scan(&oldest); err != nil {
		return fmt.Errorf("find the oldest event: %w", err)
	}
	below := func(days int) int64 {
		before := w.params.cutoff(days)
		if before.IsZero() {
			return math.MinInt64
		}
		return min(oldest, events.FirstID(before))
	}
	if err := w.expireKeys(ctx, below(w.params.Keys)); err != nil {
		return err
	}
	if err := w.expireByID(ctx, CountOutcomes, outcomesEndSQL, expireOutcomesSQL,
		below(w.params.Outcomes)); err != nil {
		return err
	}
	if err := w.expireOlder(ctx, CountConflicts, expireConflictsSQL, w.params.Bodies, oldest); err != nil {
		return err
	}
	if err := w.expireOlder(ctx, CountRejections, expireRejectionsSQL, w.params.Rejections); err != nil {
		return err
	}
	if err := w.expireEffects(ctx, oldest); err != nil {
		return err
	}
	return w.expireRuns(ctx)
}

// expireRuns deletes runs that ended before their age.
func (w *work) expireRuns(ctx context.Context) error {
	if w.params.Runs == 0 {
		return nil
	}
	if err := w.beforeStep(CountRuns); err != nil {
		return err
	}
	deleted, err := runs.Expire(ctx, w.MaintenancePool, w.params.cutoff(w.params.Runs))
	w.lease.Counts[CountRuns] += deleted
	if err != nil {
		return err
	}
	return w.advance(ctx)
}

const (
	blocksSQL = `SELECT pg_relation_size('event_keys') / current_setting('block_size')::bigint`

	// expireKeysSQL reads a range of blocks of the table. There is no index on the age of a key,
	// because every append would pay for it. A redacted event's key stays permanently: without it,
	// another delivery or an older export would create the event again and restore the cleared
	// data.
	expireKeysSQL = `
DELETE FROM event_keys k WHERE k.ctid >= format('(%s,0)', $1::bigint)::tid
	AND k.ctid < format('(%s,0)', $2::bigint)::tid AND k.id < $3
  AND NOT EXISTS (SELECT FROM redacted_events r WHERE r.event = k.id)`
)

func (w *work) expireKeys(ctx context.Context, below int64) error {
	if below == math.MinInt64 {
		return nil
	}
	var blocks int64
	if err := w.conn.QueryRow(ctx, blocksSQL).Scan(&blocks); err != nil {
		return fmt.Errorf("measure the table of keys: %w", err)
	}
	for at := int64(0); at < blocks; at += expireBlocks {
		if err := w.beforeStep("keys"); err != nil {
			return err
		}
		deleted, err := w.conn.Exec(ctx, expireKeysSQL, at, at+expireBlocks, below)
		if err != nil {
			return fmt.Errorf("expire keys: %w", err)
		}
		w.lease.Counts[CountKeys] += deleted.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	outcomesEndSQL = `SELECT event_id FROM outcomes WHERE event_id >= $1 AND event_id < $2 ORDER BY event_id OFFSET $3
		LIMIT 1`

	expireOutcomesSQL = `DELETE FROM outcomes WHERE event_id >= $1 AND event_id < $2`
)

// expireByID deletes rows in the order of event ids, one range at a time.
func (w *work) expireByID(ctx context.Context, kind, endSQL, sql string, below int64) error {
	for from, more := int64(math.MinInt64), below > math.MinInt64; more; {
		if err := w.beforeStep(kind); err != nil {
			return err
		}
		end := below
		err := w.conn.QueryRow(ctx, endSQL, from, below, expireRows).Scan(&end)
		if more = !noRows(err); err != nil && more {
			return fmt.Errorf("expire %s: %w", kind, err)
		}
		if more && end == from {
			end++ // one event has more outcomes than a range holds
		}
		deleted, err := w.conn.Exec(ctx, sql, from, end)
		if err != nil {
			return fmt.Errorf("expire %s: %w", kind, err)
		}
		from = end
		w.lease.Counts[kind] += deleted.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	// expireConflictsSQL deletes conflicting deliveries whose events are dropped, once they are old
	// enough themselves.
	expireConflictsSQL = `DELETE FROM event_conflicts WHERE id IN (SELECT c.id FROM event_conflicts c
		WHERE c.received_at < $1 AND c.event < $3 ORDER BY c.event LIMIT $2)`

	expireRejectionsSQL = `DELETE FROM rejections WHERE id IN (SELECT r.id FROM rejections r WHERE r.received_at < $1
		LIMIT $2)`
)

// expireOlder deletes rows that were received before an age, some at a time.
func (w *work) expireOlder(ctx context.Context, kind, sql string, days int, more ...any) error {
	before := w.params.cutoff(days)
	for !before.Equal(time.Time{}) {
		if err := w.beforeStep(kind); err != nil {
			return err
		}
		deleted, err := w.conn.Exec(ctx, sql, append([]any{before, expireRows}, more...)...)
		if err != nil {
			return fmt.Errorf("expire %s: %w", kind, err)
		}
		w.lease.Counts[kind] += deleted.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
		if deleted.RowsAffected() < expireRows {
			return nil
		}
	}
	return nil
}
