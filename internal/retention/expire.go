package retention

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// Limits of one statement, so that none holds locks or loads the server for long.
const (
	expireRows   = 10_000
	expireBlocks = 2048 // 16 MiB of a table
)

const oldestSQL = `SELECT coalesce(min(id), 9223372036854775807) FROM events`

// endedEffect selects effects that have ended. Only an operator can still act on them, by
// compensating them.
const endedEffect = `t.state IN ('done', 'rejected', 'expired', 'superseded')`

// objectRemoved selects effects of schedules whose object is deleted or missing. Their rule is not
// evaluated for the object again. Such effects have no event.
const objectRemoved = `t.event_id = 0 AND NOT EXISTS (SELECT FROM objects o
  WHERE o.source = t.source AND o.account = t.account AND o.object_type = t.object_type AND o.object_id = t.object_id
  	AND NOT o.deleted)`

// expiry is a kind of data that expires: the rows t of a table that meet a condition.
type expiry struct {
	kind, table, condition string
	args                   []any
}

// expiries are the kinds that the policy does not keep forever. None selects rows of events that
// are still in the log, whose oldest is given.
func (o *Params) expiries(oldest int64) (found []expiry) {
	for _, e := range []struct {
		days int
		// idArg says that the age is compared with ids of events.
		idArg                  bool
		kind, table, condition string
		more                   []any
	}{
		// A redacted event's key stays permanently: without it, another delivery or an older export
		// would create the event again and restore the cleared data.
		{o.Keys, true, CountKeys, "event_keys",
			`t.id < $1 AND NOT EXISTS (SELECT FROM redacted_events r WHERE r.event = t.id)`, nil},
		{o.Outcomes, true, CountOutcomes, "outcomes", `t.event_id < $1`, nil},
		// Conflicts are old enough themselves, and their events are dropped.
		{o.Bodies, false, CountConflicts, "event_conflicts", `t.received_at < $1 AND t.event < $2`, []any{oldest}},
		{o.Rejections, false, CountRejections, "rejections", `t.received_at < $1`, nil},
		// A replay would plan an effect again whose event is still in the log, and its rule an
		// effect of a schedule whose object exists.
		{o.EffectKeys, false, CountEffectKeys, "effects", endedEffect +
			` AND t.updated_at < $1 AND (t.event_id <> 0 AND t.event_id < $2 OR ` + objectRemoved + `)`, []any{oldest}},
		{o.Effects, false, CountEffects, "effects",
			endedEffect + ` AND t.updated_at < $1 AND t.template_data IS NOT NULL`, nil},
	} {
		before := o.cutoff(e.days)
		if before.IsZero() {
			continue
		}
		age := any(before)
		if e.idArg {
			age = min(oldest, events.FirstID(before))
		}
		found = append(found, expiry{e.kind, e.table, e.condition, append([]any{age}, e.more...)})
	}
	return found
}

// count returns how many rows expire.
func (e *expiry) count(ctx context.Context, db querier) (n int64, err error) {
	err = db.QueryRow(ctx, "SELECT count(*) FROM "+e.table+" t WHERE "+e.condition, e.args...).Scan(&n)
	return n, err
}

// expire deletes rows that are past their age, and never rows of events that are still in the log.
func (w *work) expire(ctx context.Context) error {
	var oldest int64
	if err := w.conn.QueryRow(ctx, oldestSQL).Scan(&oldest); err != nil {
		return fmt.Errorf("find the oldest event: %w", err)
	}
	for _, e := range w.params.expiries(oldest) {
		expire := w.expireBlocks
		if e.kind == CountOutcomes {
			expire = w.expireOutcomes
		}
		if err := expire(ctx, &e); err != nil {
			return fmt.Errorf("expire %s: %w", e.kind, err)
		}
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
	blocksSQL = `SELECT pg_relation_size($1::text::regclass) / current_setting('block_size')::bigint`

	// inBlocks selects the rows of a range of blocks.
	inBlocks = ` t.ctid >= format('(%%s,0)', $%d::bigint)::tid AND t.ctid < format('(%%s,0)', $%d::bigint)::tid AND `

	// clearEffects clears the template data, requests and responses. The keys and states of effects
	// stay, so that no effect happens twice.
	clearEffects = `
WITH cleared AS (
  UPDATE effects t SET template_data = NULL, reason = '' WHERE %s RETURNING t.effect
), steps AS (
  UPDATE effect_steps s SET request = NULL, captured = '{}', error = '' FROM cleared WHERE s.effect = cleared.effect
)
SELECT effect FROM cleared`
)

// statement deletes or clears the rows in a range of blocks, the last two parameters.
func (e *expiry) statement() string {
	where := fmt.Sprintf(inBlocks, len(e.args)+1, len(e.args)+2) + e.condition
	if e.kind == CountEffects {
		return fmt.Sprintf(clearEffects, where)
	}
	return "DELETE FROM " + e.table + " t WHERE" + where
}

// expireBlocks reads the table, one range of blocks at a time. There is no index on the age,
// because each append of a key and each step of an effect would pay for it.
func (w *work) expireBlocks(ctx context.Context, e *expiry) error {
	var blocks int64
	if err := w.conn.QueryRow(ctx, blocksSQL, e.table).Scan(&blocks); err != nil {
		return err
	}
	for at := int64(0); at < blocks; at += expireBlocks {
		args := append(slices.Clone(e.args), at, at+expireBlocks)
		if err := w.expireSome(ctx, e.kind, e.statement(), args...); err != nil {
			return err
		}
	}
	return nil
}

// expireSome executes one statement that expires data.
func (w *work) expireSome(ctx context.Context, kind, sql string, args ...any) error {
	if err := w.beforeStep(kind); err != nil {
		return err
	}
	expired, err := w.conn.Exec(ctx, sql, args...)
	if err != nil {
		return err
	}
	w.lease.Counts[kind] += expired.RowsAffected()
	return w.advance(ctx)
}

const (
	outcomesEndSQL = `SELECT event_id FROM outcomes WHERE event_id >= $1 AND event_id < $2 ORDER BY event_id OFFSET $3
		LIMIT 1`

	expireOutcomesSQL = `DELETE FROM outcomes WHERE event_id >= $1 AND event_id < $2`
)

// expireOutcomes deletes outcomes in the order of event ids, one range at a time.
func (w *work) expireOutcomes(ctx context.Context, e *expiry) error {
	for from, more := int64(math.MinInt64), true; more; {
		end := e.args[0].(int64)
		err := w.conn.QueryRow(ctx, outcomesEndSQL, from, end, expireRows).Scan(&end)
		if more = !noRows(err); err != nil && more {
			return err
		}
		if more && end == from {
			end++ // one event has more outcomes than a range holds
		}
		if err := w.expireSome(ctx, e.kind, expireOutcomesSQL, from, end); err != nil {
			return err
		}
		from = end
	}
	return nil
}
