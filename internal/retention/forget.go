package retention

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// How much one statement forgets, so that none holds locks or the server for long.
const (
	forgetRows   = 10_000
	forgetBlocks = 2048 // 16 MiB of a table
)

const oldestSQL = `SELECT coalesce(min(id), 9223372036854775807) FROM events`

// forget deletes what is past its age, and never what belongs to events that are still there.
func (w *work) forget(ctx context.Context) error {
	var oldest int64
	if err := w.conn.QueryRow(ctx, oldestSQL).Scan(&oldest); err != nil {
		return fmt.Errorf("find the oldest event: %w", err)
	}
	below := func(days int) int64 {
		before := w.order.before(days)
		if before.IsZero() {
			return math.MinInt64
		}
		return min(oldest, events.FirstID(before))
	}
	if err := w.forgetKeys(ctx, below(w.order.Keys)); err != nil {
		return err
	}
	if err := w.forgetByID(ctx, CountOutcomes, outcomesEndSQL, forgetOutcomesSQL, below(w.order.Outcomes)); err != nil {
		return err
	}
	if err := w.forgetOlder(ctx, CountConflicts, forgetConflictsSQL, w.order.Bodies, oldest); err != nil {
		return err
	}
	if err := w.forgetOlder(ctx, CountRejections, forgetRejectionsSQL, w.order.Rejections); err != nil {
		return err
	}
	if err := w.forgetEffects(ctx, oldest); err != nil {
		return err
	}
	return w.forgetRuns(ctx)
}

// forgetRuns deletes what ended before the age of the history of runs.
func (w *work) forgetRuns(ctx context.Context) error {
	if w.order.Runs == 0 {
		return nil
	}
	if err := w.at(CountRuns); err != nil {
		return err
	}
	gone, err := runs.Forget(ctx, w.Keeper, w.order.before(w.order.Runs))
	w.hold.Counts[CountRuns] += gone
	if err != nil {
		return err
	}
	return w.advance(ctx)
}

const (
	blocksSQL = `SELECT pg_relation_size('event_keys') / current_setting('block_size')::bigint`

	// forgetKeysSQL reads a stretch of the table: no index tells the age of a key, and one would cost every append. A redacted event's key stays for good: the same
	// delivery again, or an export of before, would be a new event, and bring back what was cleared.
	forgetKeysSQL = `
DELETE FROM event_keys k WHERE k.ctid >= format('(%s,0)', $1::bigint)::tid AND k.ctid < format('(%s,0)', $2::bigint)::tid AND k.id < $3
  AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = k.id)`
)

func (w *work) forgetKeys(ctx context.Context, below int64) error {
	if below == math.MinInt64 {
		return nil
	}
	var blocks int64
	if err := w.conn.QueryRow(ctx, blocksSQL).Scan(&blocks); err != nil {
		return fmt.Errorf("measure the table of keys: %w", err)
	}
	for at := int64(0); at < blocks; at += forgetBlocks {
		if err := w.at("keys"); err != nil {
			return err
		}
		gone, err := w.conn.Exec(ctx, forgetKeysSQL, at, at+forgetBlocks, below)
		if err != nil {
			return fmt.Errorf("forget keys: %w", err)
		}
		w.hold.Counts[CountKeys] += gone.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	outcomesEndSQL = `SELECT event_id FROM outcomes WHERE event_id >= $1 AND event_id < $2 ORDER BY event_id OFFSET $3 LIMIT 1`

	forgetOutcomesSQL = `DELETE FROM outcomes WHERE event_id >= $1 AND event_id < $2`
)

// forgetByID deletes rows in the order of events, a window at a time.
func (w *work) forgetByID(ctx context.Context, what, endSQL, sql string, below int64) error {
	for from, more := int64(math.MinInt64), below > math.MinInt64; more; {
		if err := w.at(what); err != nil {
			return err
		}
		end := below
		err := w.conn.QueryRow(ctx, endSQL, from, below, forgetRows).Scan(&end)
		if more = !noRows(err); err != nil && more {
			return fmt.Errorf("forget %s: %w", what, err)
		}
		if more && end == from {
			end++ // more outcomes of one event than a window holds
		}
		gone, err := w.conn.Exec(ctx, sql, from, end)
		if err != nil {
			return fmt.Errorf("forget %s: %w", what, err)
		}
		from = end
		w.hold.Counts[what] += gone.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

const (
	// forgetConflictsSQL takes what was kept whole of deliveries whose events are dropped, once it is as old itself.
	forgetConflictsSQL = `DELETE FROM event_conflicts WHERE id IN (SELECT c.id FROM event_conflicts c WHERE c.received_at < $1 AND c.event < $3 ORDER BY c.event LIMIT $2)`

	forgetRejectionsSQL = `DELETE FROM rejections WHERE id IN (SELECT r.id FROM rejections r WHERE r.received_at < $1 LIMIT $2)`
)

// forgetOlder deletes what was received before an age, some rows at a time.
func (w *work) forgetOlder(ctx context.Context, what, sql string, days int, more ...any) error {
	before := w.order.before(days)
	for !before.Equal(time.Time{}) {
		if err := w.at(what); err != nil {
			return err
		}
		gone, err := w.conn.Exec(ctx, sql, append([]any{before, forgetRows}, more...)...)
		if err != nil {
			return fmt.Errorf("forget %s: %w", what, err)
		}
		w.hold.Counts[what] += gone.RowsAffected()
		if err := w.advance(ctx); err != nil {
			return err
		}
		if gone.RowsAffected() < forgetRows {
			return nil
		}
	}
	return nil
}
