package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
)

const (
	countEffectsSQL = `SELECT count(*) FROM effects`

	// effectsSQL finds effects, and steps of them, in states in which nobody leaves them.
	effectsSQL = `
SELECT e.effect, e.event_id, e.source, e.account, e.object_type, e.object_id, w.wrong FROM (
  SELECT e.effect, 'it is running, and nobody has taken it' AS wrong FROM effects e WHERE e.state = 'running' AND (e.taken_by = '' OR e.taken_until IS NULL)
  UNION ALL SELECT e.effect, 'it is ' || e.state || ', and never due' FROM effects e WHERE e.state IN ('planned', 'failed') AND e.due IS NULL
  UNION ALL SELECT s.effect, 'step ' || s.step || ' is ' || s.state || ', and the effect is ' || e.state FROM effect_steps s JOIN effects e USING (effect)
    WHERE s.state = 'reserved' AND e.state <> 'running' OR s.state = 'unknown' AND e.state = 'done' OR e.state IN ('waiting', 'superseded', 'expired')
  UNION ALL SELECT e.effect, 'it is of no event, and of no window of a schedule' FROM effects e WHERE e.event_id = 0 AND NOT e.facts ? 'window'
  UNION ALL SELECT s.effect, 'step ' || s.step || ' is undone, and was not done' FROM effect_steps s
    WHERE s.undo AND NOT EXISTS (SELECT FROM effect_steps f WHERE f.effect = s.effect AND f.step = s.step AND NOT f.undo AND f.state = 'done')
) w JOIN effects e USING (effect) ORDER BY e.effect`

	// twiceSQL looks past the index that is to keep them apart, which may be what is damaged.
	twiceSQL = `
SELECT min(effect), max(effect), key, rule_version, min(source), min(account), min(object_type), min(object_id) FROM effects GROUP BY key, rule_version, forced HAVING count(*) > 1 ORDER BY 1`

	// otherwiseSQL counts effects that are done though a step was not, as where their rule lost it meanwhile.
	otherwiseSQL = `SELECT count(DISTINCT effect) FROM effect_steps s JOIN effects e USING (effect) WHERE e.state = 'done' AND NOT e.undoing AND s.state = 'failed'`

	// waitingEffectsSQL tells what waits: for a processor, for an answer, and for persons.
	waitingEffectsSQL = `
SELECT count(*) FILTER (WHERE state IN ('planned', 'failed') AND due <= $1), coalesce(min(due) FILTER (WHERE state IN ('planned', 'failed')), $1),
  count(*) FILTER (WHERE state = 'running' AND taken_until <= $1), coalesce(min(taken_until) FILTER (WHERE state = 'running'), $1),
  count(*) FILTER (WHERE state = 'waiting'), coalesce(min(planned_at) FILTER (WHERE state = 'waiting'), $1),
  count(*) FILTER (WHERE state = 'review'), coalesce(min(updated_at) FILTER (WHERE state = 'review'), $1)
FROM effects WHERE state IN ('planned', 'failed', 'running', 'waiting', 'review')`

	// windowWaitsSQL tells of which objects windows of schedules wait to know the state.
	windowWaitsSQL = `SELECT count(*), coalesce(min(window_end), $1) FROM effect_window_waits`

	// strayedSQL tells what waits for a rule or a destination that the processors do not have.
	strayedSQL = `
SELECT count(*), coalesce(min(coalesce(tried_since, planned_at)), $1) FROM effects WHERE state = 'planned' AND strpos(reason, $2) > 0`

	doubtsSQL = `
SELECT count(*), coalesce(min(coalesce(s.ended_at, s.reserved_at)), $1) FROM effect_steps s JOIN effects e USING (effect) WHERE s.state = 'unknown' AND e.state IN ('planned', 'failed', 'review')`
)

// effects compares the ledger of effects with what must hold of it.
func (w *work) effects(ctx context.Context) error {
	tx := w.view.txs[0]
	var n, otherwise int64
	var windows waiting
	if err := tx.QueryRow(ctx, windowWaitsSQL, w.view.at).Scan(&windows.count, &windows.since); err != nil {
		return fmt.Errorf("look for windows that wait: %w", err)
	}
	w.wait("objects in doubt that rules on a schedule are to be asked about (a look, a newer event or a person decides)", windows, "")
	if err := tx.QueryRow(ctx, countEffectsSQL).Scan(&n); err != nil {
		return fmt.Errorf("count effects: %w", err)
	}
	if n == 0 {
		return nil
	}
	w.tally.look("effects", n)
	if err := w.wrongEffects(ctx, tx); err != nil {
		return err
	}
	if err := w.effectsTwice(ctx, tx); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, otherwiseSQL).Scan(&otherwise); err != nil {
		return fmt.Errorf("look for steps that were not done: %w", err)
	}
	if otherwise > 0 {
		w.tally.note("%d effects are done though a step that they began was not: their rule has lost it meanwhile, or the ledger was changed by hand", otherwise)
	}
	return w.waitingEffects(ctx, tx)
}

func (w *work) wrongEffects(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, effectsSQL)
	if err != nil {
		return fmt.Errorf("look at effects: %w", err)
	}
	var item Item
	var source int32
	var wrong string
	_, err = pgx.ForEachRow(rows, []any{&item.Effect, &item.Event, &source, &item.Account, &item.ObjectType, &item.ObjectID, &wrong}, func() error {
		item.Source, item.Detail, item.Mend = w.source(source), fmt.Sprintf("effect %d: %s", item.Effect, wrong), fmt.Sprintf("postern effects show %d", item.Effect)
		w.tally.add(EffectWrong, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look at effects: %w", err)
	}
	return nil
}

func (w *work) effectsTwice(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, twiceSQL)
	if err != nil {
		return fmt.Errorf("look for effects of one key: %w", err)
	}
	var item Item
	var other int64
	var source, version int32
	var key string
	_, err = pgx.ForEachRow(rows, []any{&item.Effect, &other, &key, &version, &source, &item.Account, &item.ObjectType, &item.ObjectID}, func() error {
		item.Source, item.Detail = w.source(source), fmt.Sprintf("effects %d and %d are both of key %s, version %d", item.Effect, other, key, version)
		item.Mend = fmt.Sprintf("postern effects reject %d --reason 'the same as %d'", other, item.Effect)
		w.tally.add(EffectTwice, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for effects of one key: %w", err)
	}
	return nil
}

func (w *work) waitingEffects(ctx context.Context, tx pgx.Tx) error {
	var due, lapsed, waits, review, doubts, strayed waiting
	at := w.view.at
	err := tx.QueryRow(ctx, waitingEffectsSQL, at).Scan(&due.count, &due.since, &lapsed.count, &lapsed.since, &waits.count, &waits.since, &review.count, &review.since)
	if err == nil {
		err = tx.QueryRow(ctx, doubtsSQL, at).Scan(&doubts.count, &doubts.since)
	}
	if err == nil {
		err = tx.QueryRow(ctx, strayedSQL, at, effects.NotConfigured).Scan(&strayed.count, &strayed.since)
	}
	if err != nil {
		return fmt.Errorf("look for effects that wait: %w", err)
	}
	w.wait("effects that are due", due, "start a processor; where one runs, see postern effects list --state failed, and whether the destination answers")
	w.wait("effects that a process had taken that ended", lapsed, "start a processor, which gives them back")
	w.wait("effects whose rule or destination is not configured", strayed, "postern effects list --state planned -o json names what each waits for: configure that, or end them with postern effects reject")
	w.wait("steps of which nobody knows whether they were done (postern effects show tells what clears that up)", doubts, "")
	w.wait("effects that a person must see to (postern effects list --state review)", review, "")
	w.wait("effects that wait for an approval (postern effects list --state waiting)", waits, "")
	return nil
}
