package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Effects keep states of their objects from before and after a change, what was sent because of it, and what was answered: any of it may tell of a redacted event.
const (
	// lockEffectsSQL waits for whoever has taken effects of objects or records what came of them, in the order in which these do: the statements after it see all that they wrote.
	lockEffectsSQL = `
SELECT e.effect FROM effects e JOIN (
  SELECT o.source, o.account, o.object_type, o.object_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS o(source, account, object_type, object_id)
  UNION
  SELECT o.source, o.account, o.object_type, o.object_id FROM outcomes o WHERE o.event_id = ANY($5::bigint[]) AND o.object <> 0
) k ON e.source = k.source AND e.account = k.account AND e.object_type = k.object_type AND e.object_id = k.object_id
ORDER BY e.effect FOR UPDATE OF e`

	// dropEffectsSQL clears effects again that were cleared before: what a process had taken by then may have left something since.
	dropEffectsSQL = `
UPDATE effects e SET facts = NULL, updated_at = clock_now(),
  state = CASE WHEN e.state IN ('waiting', 'planned', 'failed', 'review') THEN 'rejected' ELSE e.state END, due = NULL,
  reason = CASE WHEN e.state IN ('waiting', 'planned', 'failed', 'review') THEN 'redacted before it was done' WHEN e.facts IS NULL AND e.state = 'rejected' THEN e.reason ELSE '' END
WHERE e.effect = ANY($1::bigint[])`

	dropStepsSQL = `UPDATE effect_steps SET request = NULL, captured = '{}', error = '' WHERE effect = ANY($1::bigint[])`

	dropHoldsSQL = `
DELETE FROM effect_holds h USING (
  SELECT o.source, o.account, o.object_type, o.object_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS o(source, account, object_type, object_id)
  UNION
  SELECT o.source, o.account, o.object_type, o.object_id FROM outcomes o WHERE o.event_id = ANY($5::bigint[]) AND o.object <> 0
) k WHERE h.source = k.source AND h.account = k.account AND h.object_type = k.object_type AND h.object_id = k.object_id`
)

// dropEffects clears what the ledger of effects tells of objects, and rejects what was not done yet, since nothing is left to do it with. It runs under the objects' locks, which whoever plans
// effects takes.
func dropEffects(ctx context.Context, tx pgx.Tx, k keys, ids []int64) error {
	rows, err := tx.Query(ctx, lockEffectsSQL, k.sources, k.accounts, k.types, k.ids, notNil(ids))
	if err != nil {
		return fmt.Errorf("lock effects: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("lock effects: %w", err)
	}
	for _, sql := range []string{dropEffectsSQL, dropStepsSQL} {
		if _, err := tx.Exec(ctx, sql, notNil(all)); err != nil {
			return fmt.Errorf("clear effects: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, dropHoldsSQL, k.sources, k.accounts, k.types, k.ids, notNil(ids)); err != nil {
		return fmt.Errorf("clear effects: %w", err)
	}
	return nil
}
