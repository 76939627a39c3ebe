package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Effects hold states of their objects before and after a change, summaries of other objects,
// requests and responses. Each may contain data of a redacted event.
const (
	// affectedObjects are the objects $1 to $4 and those of the events $5.
	affectedObjects = `(
  SELECT o.source, o.account, o.object_type, o.object_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS
  	o(source, account, object_type, object_id)
  UNION
  SELECT o.source, o.account, o.object_type, o.object_id FROM outcomes o WHERE o.event_id = ANY($5::bigint[])
  	AND o.object <> 0
) k`

	// lockEffectsSQL waits for processes that execute effects of the objects, or effects whose
	// summaries list them, or record their results, in the same lock order. The statements after it
	// see all that they wrote.
	lockEffectsSQL = `
WITH affected AS MATERIALIZED (SELECT k.* FROM ` + affectedObjects + `)
SELECT e.effect FROM effects e WHERE e.effect = ANY (ARRAY(
  SELECT a.effect FROM affected k JOIN effects a ON a.source = k.source AND a.account = k.account
    AND a.object_type = k.object_type AND a.object_id = k.object_id
  UNION ALL
  SELECT a.effect FROM affected k CROSS JOIN LATERAL (
    SELECT a.effect, a.source, a.account FROM effects a WHERE a.template_data ? 'summary'
      AND a.template_data -> 'summary' @> jsonb_build_object('type', k.object_type, 'objects',
        jsonb_build_array(jsonb_build_object('id', k.object_id))) OFFSET 0) a
  WHERE a.source = k.source AND a.account = k.account))
ORDER BY e.effect FOR UPDATE OF e`

	// clearEffectsSQL also clears effects that were cleared before, because a process that held a
	// lease then may have written since.
	clearEffectsSQL = `
UPDATE effects e SET template_data = NULL, updated_at = clock_now(),
  state = CASE WHEN e.state IN ('awaiting_approval', 'planned', 'failed', 'needs_review') THEN 'rejected'
  	ELSE e.state END, due = NULL,
  reason = CASE WHEN e.state IN ('awaiting_approval', 'planned', 'failed', 'needs_review') THEN
  	'redacted before it was done'
  	WHEN e.template_data IS NULL AND e.state = 'rejected' THEN e.reason ELSE '' END
WHERE e.effect = ANY($1::bigint[])`

	clearStepsSQL = `UPDATE effect_steps SET request = NULL, captured = '{}', error = ''
		WHERE effect = ANY($1::bigint[])`

	deleteBaselinesSQL = `
DELETE FROM effect_baselines h USING ` + affectedObjects + ` WHERE h.source = k.source AND h.account = k.account
	AND h.object_type = k.object_type AND h.object_id = k.object_id`

	// deleteDifferencesSQL deletes the stored differences between objects and the provider.
	deleteDifferencesSQL = `
DELETE FROM drifts d USING ` + affectedObjects + ` WHERE d.source = k.source AND d.account = k.account
	AND d.object_type = k.object_type AND d.object_id = k.object_id`
)

// clearEffects clears the data of objects in the ledger of effects, and their differences. It
// rejects unfinished effects, because their data is deleted. It runs under the objects' locks,
// which planning and reconciliations take too.
func clearEffects(ctx context.Context, tx pgx.Tx, k keys, ids []int64) error {
	all, err := postgres.Collect(ctx, tx, pgx.RowTo[int64], lockEffectsSQL, k.sources, k.accounts, k.types, k.ids,
		notNil(ids))
	if err != nil {
		return fmt.Errorf("lock effects: %w", err)
	}
	for _, sql := range []string{clearEffectsSQL, clearStepsSQL} {
		if _, err := tx.Exec(ctx, sql, notNil(all)); err != nil {
			return fmt.Errorf("clear effects: %w", err)
		}
	}
	for _, sql := range []string{deleteBaselinesSQL, deleteDifferencesSQL} {
		if _, err := tx.Exec(ctx, sql, k.sources, k.accounts, k.types, k.ids, notNil(ids)); err != nil {
			return fmt.Errorf("clear baselines and differences: %w", err)
		}
	}
	return nil
}
