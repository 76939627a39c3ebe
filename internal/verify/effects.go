package verify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	countEffectsSQL = `SELECT count(*) FROM effects`

	// wrongEffectsSQL finds effects and steps in states that no process can leave.
	wrongEffectsSQL = `
SELECT e.effect, e.event_id, e.source, e.account, e.object_type, e.object_id, w.wrong FROM (
  SELECT e.effect, 'it is running, and nobody has taken it' AS wrong FROM effects e WHERE e.state = 'running'
  	AND (e.lease_owner = '' OR e.lease_until IS NULL)
  UNION ALL SELECT e.effect, 'it is ' || e.state || ', and never due' FROM effects e
  	WHERE e.state IN ('planned', 'failed') AND e.due IS NULL
  UNION ALL SELECT s.effect, 'step ' || s.step || ' is ' || s.state || ', and the effect is ' || e.state
  	FROM effect_steps s JOIN effects e USING (effect)
    WHERE s.state = 'reserved' AND e.state <> 'running' OR s.state IN ('checking', 'unknown') AND e.state = 'done'
    	OR e.state IN ('awaiting_approval', 'superseded', 'expired')
  UNION ALL SELECT e.effect, 'it is of no event, and of no window of a schedule' FROM effects e WHERE e.event_id = 0
  	AND NOT e.template_data ? 'window'
  UNION ALL SELECT s.effect, 'step ' || s.step || ' is undone, and was not done' FROM effect_steps s
    WHERE s.undo AND NOT EXISTS (SELECT FROM effect_steps f WHERE f.effect = s.effect AND f.step = s.step AND NOT f.undo
    	AND f.state = 'done')
) w JOIN effects e USING (effect) ORDER BY e.effect`

	// duplicateEffectsSQL does not rely on the unique index, which may be damaged.
	duplicateEffectsSQL = `
SELECT min(effect), max(effect), key, rule_version, min(source), min(account), min(object_type), min(object_id)
	FROM effects GROUP BY key, rule_version, forced HAVING count(*) > 1 ORDER BY 1`

	// doneWithFailedStepSQL counts effects that are done although a step failed, for example
	// because their rule lost the step.
	doneWithFailedStepSQL = `SELECT count(DISTINCT effect) FROM effect_steps s JOIN effects e USING (effect)
		WHERE e.state = 'done' AND NOT e.compensating AND s.state = 'failed'`

	// waitingEffectsSQL counts effects that wait for a processor, for a response and for an
	// operator.
	waitingEffectsSQL = `
SELECT count(*) FILTER (WHERE state IN ('planned', 'failed') AND due <= $1),
	coalesce(min(due) FILTER (WHERE state IN ('planned', 'failed')), $1),
  count(*) FILTER (WHERE state = 'running' AND lease_until <= $1),
  	coalesce(min(lease_until) FILTER (WHERE state = 'running'), $1),
  count(*) FILTER (WHERE state = 'awaiting_approval'),
  	coalesce(min(planned_at) FILTER (WHERE state = 'awaiting_approval'), $1),
  count(*) FILTER (WHERE state = 'needs_review'), coalesce(min(updated_at) FILTER (WHERE state = 'needs_review'), $1)
FROM effects WHERE state IN ('planned', 'failed', 'running', 'awaiting_approval', 'needs_review')`

	// windowWaitsSQL counts the objects that windows of schedules wait for, because their state is
	// ambiguous.
	windowWaitsSQL = `SELECT count(*), coalesce(min(window_end), $1) FROM effect_window_waits`

	// unconfiguredEffectsSQL counts effects whose rule or destination is not configured.
	unconfiguredEffectsSQL = `
SELECT count(*), coalesce(min(coalesce(first_attempt_at, planned_at)), $1) FROM effects WHERE state = 'planned'
	AND strpos(reason, $2) > 0`

	unknownOutcomesSQL = `
SELECT count(*), coalesce(min(coalesce(s.ended_at, s.reserved_at)), $1) FROM effect_steps s
	JOIN effects e USING (effect) WHERE s.state = 'unknown' AND e.state IN ('planned', 'failed', 'needs_review')`
)

// checkEffects checks the ledger of effects.
func (w *verification) checkEffects(ctx context.Context) error {
	tx := w.snapshot.txs[0]
	var n, failedSteps int64
	var windows waitCount
	if err := tx.QueryRow(ctx, windowWaitsSQL, w.snapshot.at).Scan(&windows.count, &windows.since); err != nil {
		return fmt.Errorf("read waiting windows: %w", err)
	}
	w.reportWaiting("ambiguous objects that rules on a schedule wait for (a "+
		"refetch, a newer event or an operator decides)", windows, "")
	if err := tx.QueryRow(ctx, countEffectsSQL).Scan(&n); err != nil {
		return fmt.Errorf("count effects: %w", err)
	}
	if n == 0 {
		return nil
	}
	w.results.countChecked("effects", n)
	if err := w.reportWrongEffects(ctx, tx); err != nil {
		return err
	}
	if err := w.reportDuplicateEffects(ctx, tx); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, doneWithFailedStepSQL).Scan(&failedSteps); err != nil {
		return fmt.Errorf("read failed steps: %w", err)
	}
	if failedSteps > 0 {
		w.results.note("%d effects are done although one of their steps failed: their rule has lost the step since, "+
			"or the ledger was changed manually", failedSteps)
	}
	return w.reportWaitingEffects(ctx, tx)
}

func (w *verification) reportWrongEffects(ctx context.Context, tx pgx.Tx) error {
	var item Item
	var source int32
	var wrong string
	err := postgres.ForEach(ctx, tx, wrongEffectsSQL, nil, []any{&item.Effect, &item.Event, &source, &item.Account,
		&item.ObjectType,
		&item.ObjectID, &wrong}, func() error {
		item.Source, item.Detail, item.Repair = w.sourceName(source), fmt.Sprintf("effect %d: %s", item.Effect, wrong),
			fmt.Sprintf("postern effects show %d", item.Effect)
		w.results.add(EffectWrong, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read effects: %w", err)
	}
	return nil
}

func (w *verification) reportDuplicateEffects(ctx context.Context, tx pgx.Tx) error {
	var item Item
	var other int64
	var source, version int32
	var key string
	err := postgres.ForEach(ctx, tx, duplicateEffectsSQL, nil, []any{&item.Effect, &other, &key, &version, &source,
		&item.Account, &item.ObjectType,
		&item.ObjectID}, func() error {
		item.Source, item.Detail = w.sourceName(source), fmt.Sprintf("effects %d and %d both have key %s, version %d",
			item.Effect, other, key, version)
		item.Repair = fmt.Sprintf("postern effects reject %d --reason 'the same as %d'", other, item.Effect)
		w.results.add(EffectTwice, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read duplicate effects: %w", err)
	}
	return nil
}

func (w *verification) reportWaitingEffects(ctx context.Context, tx pgx.Tx) error {
	var due, expired, approvals, review, unknown, unconfigured waitCount
	at := w.snapshot.at
	err := tx.QueryRow(ctx, waitingEffectsSQL, at).Scan(&due.count, &due.since, &expired.count, &expired.since,
		&approvals.count, &approvals.since, &review.count, &review.since)
	if err == nil {
		err = tx.QueryRow(ctx, unknownOutcomesSQL, at).Scan(&unknown.count, &unknown.since)
	}
	if err == nil {
		err = tx.QueryRow(ctx, unconfiguredEffectsSQL, at, effects.NotConfigured).Scan(&unconfigured.count,
			&unconfigured.since)
	}
	if err != nil {
		return fmt.Errorf("read waiting effects: %w", err)
	}
	w.reportWaiting("effects that are due", due, "start a processor; if one runs, see postern effects list --state "+
		"failed, and check whether the destination responds")
	w.reportWaiting("effects whose process has ended", expired, "start a processor, which continues them")
	w.reportWaiting("effects whose rule or destination is not configured", unconfigured, "postern effects list "+
		"--state planned -o json shows what each waits for: configure that, or end them with postern effects reject")
	w.reportWaiting("steps with unknown outcome (postern effects show says how to resolve them)", unknown, "")
	w.reportWaiting("effects that need review (postern effects list --state needs_review)", review, "")
	w.reportWaiting("effects that await approval (postern effects list --state awaiting_approval)", approvals, "")
	return nil
}
