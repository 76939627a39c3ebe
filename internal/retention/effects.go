package retention

import (
	"context"
	"fmt"
	"time"
)

// endedEffect selects effects that have ended. Only an operator can still act on them, by
// compensating them.
const endedEffect = `e.state IN ('done', 'rejected', 'expired', 'superseded')`

// objectRemoved selects effects of schedules whose object is deleted or missing. Their rule is not
// evaluated for the object again. Such effects have no event.
const objectRemoved = `e.event_id = 0 AND NOT EXISTS (SELECT FROM objects o
  WHERE o.source = e.source AND o.account = e.account AND o.object_type = e.object_type AND o.object_id = e.object_id
  	AND NOT o.deleted)`

const (
	effectsEndSQL = `SELECT effect FROM effects WHERE effect > $1 ORDER BY effect OFFSET $2 LIMIT 1`

	// clearEffectsSQL clears the template data, requests and responses of the effects of a range.
	// Their keys and states stay, so that no effect happens twice.
	clearEffectsSQL = `
WITH cleared AS (
  UPDATE effects e SET template_data = NULL, reason = '' WHERE e.effect > $1 AND e.effect <= $2 AND ` +
		endedEffect + ` AND e.updated_at < $3 AND e.template_data IS NOT NULL RETURNING e.effect
), steps AS (
  UPDATE effect_steps s SET request = NULL, captured = '{}', error = '' FROM cleared WHERE s.effect = cleared.effect
)
SELECT count(*) FROM cleared`

	// dropEffectsSQL deletes the effects of a range, with their steps. It keeps effects whose event
	// is still in the log, because a replay would plan them again. It keeps effects of schedules
	// whose object exists, for the same reason.
	dropEffectsSQL = `
WITH dropped AS (DELETE FROM effects e WHERE e.effect > $1 AND e.effect <= $2 AND ` + endedEffect +
		` AND e.updated_at < $3 AND (e.event_id <> 0 AND e.event_id < $4 OR ` + objectRemoved + `) RETURNING e.effect)
SELECT count(*) FROM dropped`

	countEffectsSQL = `SELECT count(*) FROM effects e WHERE ` + endedEffect + ` AND e.updated_at < $1
		AND e.template_data IS NOT NULL`
	countEffectKeysSQL = `SELECT count(*) FROM effects e WHERE ` + endedEffect + ` AND e.updated_at < $1
		AND (e.event_id <> 0
		AND e.event_id < $2 OR ` + objectRemoved + `)`
)

// expireEffects deletes effects that ended before one age, and clears the data of those that ended
// before another. There is no index on the age, because each step of each effect would pay for it.
// Instead, the whole table is read once a day.
func (w *work) expireEffects(ctx context.Context, oldest int64) error {
	if err := w.walkEffects(ctx, CountEffectKeys, dropEffectsSQL, w.params.cutoff(w.params.EffectKeys),
		oldest); err != nil {
		return err
	}
	return w.walkEffects(ctx, CountEffects, clearEffectsSQL, w.params.cutoff(w.params.Effects))
}

// walkEffects runs a statement on the effects that ended before a time, one range of the table at a
// time.
func (w *work) walkEffects(ctx context.Context, kind, sql string, before time.Time, more ...any) error {
	for from := int64(0); !before.IsZero(); {
		if err := w.beforeStep(kind); err != nil {
			return err
		}
		end, last := int64(1)<<62, false
		err := w.conn.QueryRow(ctx, effectsEndSQL, from, expireRows).Scan(&end)
		if last = noRows(err); err != nil && !last {
			return fmt.Errorf("walk the effects: %w", err)
		}
		var n int64
		if err := w.conn.QueryRow(ctx, sql, append([]any{from, end, before}, more...)...).Scan(&n); err != nil {
			return fmt.Errorf("expire %s: %w", kind, err)
		}
		w.lease.Counts[kind] += n
		if err := w.advance(ctx); err != nil || last {
			return err
		}
		from = end
	}
	return nil
}
