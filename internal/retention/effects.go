package retention

import (
	"context"
	"fmt"
	"time"
)

// ended says of an effect that nobody goes on with it: only a person could, who has it undone.
const ended = `e.state IN ('done', 'rejected', 'expired', 'superseded')`

// unasked says of an effect of a schedule, which has no event, that its rule will not be asked about its object again: that is gone.
const unasked = `e.event_id = 0 AND NOT EXISTS (SELECT FROM objects o
  WHERE o.source = e.source AND o.account = e.account AND o.object_type = e.object_type AND o.object_id = e.object_id AND NOT o.deleted)`

const (
	effectsEndSQL = `SELECT effect FROM effects WHERE effect > $1 ORDER BY effect OFFSET $2 LIMIT 1`

	// clearEffectsSQL clears what effects of a window were planned with, sent and answered. Their keys and states stay, so that nothing follows twice.
	clearEffectsSQL = `
WITH cleared AS (
  UPDATE effects e SET facts = NULL, reason = '' WHERE e.effect > $1 AND e.effect <= $2 AND ` + ended + ` AND e.updated_at < $3 AND e.facts IS NOT NULL RETURNING e.effect
), steps AS (
  UPDATE effect_steps s SET request = NULL, captured = '{}', error = '' FROM cleared WHERE s.effect = cleared.effect
)
SELECT count(*) FROM cleared`

	// dropEffectsSQL deletes effects of a window, with their steps, but those whose event is in the log still: a replay would plan them again. So would a schedule where the object is there.
	dropEffectsSQL = `
WITH dropped AS (DELETE FROM effects e WHERE e.effect > $1 AND e.effect <= $2 AND ` + ended + ` AND e.updated_at < $3 AND (e.event_id <> 0 AND e.event_id < $4 OR ` + unasked + `) RETURNING e.effect)
SELECT count(*) FROM dropped`

	countEffectsSQL    = `SELECT count(*) FROM effects e WHERE ` + ended + ` AND e.updated_at < $1 AND e.facts IS NOT NULL`
	countEffectKeysSQL = `SELECT count(*) FROM effects e WHERE ` + ended + ` AND e.updated_at < $1 AND (e.event_id <> 0 AND e.event_id < $2 OR ` + unasked + `)`
)

// forgetEffects deletes effects that ended before an age, and clears what others hold. No index tells the age, which each step of each effect would pay for: the ledger is walked once a day.
func (w *work) forgetEffects(ctx context.Context, oldest int64) error {
	if err := w.walkEffects(ctx, CountEffectKeys, dropEffectsSQL, w.order.before(w.order.EffectKeys), oldest); err != nil {
		return err
	}
	return w.walkEffects(ctx, CountEffects, clearEffectsSQL, w.order.before(w.order.Effects))
}

// walkEffects does something with the effects that ended before a time, a window of the ledger at a time.
func (w *work) walkEffects(ctx context.Context, what, sql string, before time.Time, more ...any) error {
	for from := int64(0); !before.IsZero(); {
		if err := w.at(what); err != nil {
			return err
		}
		end, last := int64(1)<<62, false
		err := w.conn.QueryRow(ctx, effectsEndSQL, from, forgetRows).Scan(&end)
		if last = noRows(err); err != nil && !last {
			return fmt.Errorf("walk the ledger of effects: %w", err)
		}
		var gone int64
		if err := w.conn.QueryRow(ctx, sql, append([]any{from, end, before}, more...)...).Scan(&gone); err != nil {
			return fmt.Errorf("forget %s: %w", what, err)
		}
		w.hold.Counts[what] += gone
		if err := w.advance(ctx); err != nil || last {
			return err
		}
		from = end
	}
	return nil
}
