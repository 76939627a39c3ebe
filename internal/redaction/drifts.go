package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// dropDriftsSQL forgets how objects differed from the provider, those of $1 to $4 and those that events were applied to.
	dropDriftsSQL = `
DELETE FROM drifts d USING (
  SELECT o.source, o.account, o.object_type, o.object_id FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS o(source, account, object_type, object_id)
  UNION
  SELECT o.source, o.account, o.object_type, o.object_id FROM outcomes o WHERE o.event_id = ANY($5::bigint[]) AND o.object <> 0
) k WHERE d.source = k.source AND d.account = k.account AND d.object_type = k.object_type AND d.object_id = k.object_id`

	// clearDriftsSQL leaves the counts of fields.
	clearDriftsSQL = `UPDATE drifts SET fields = '[]', more = more + jsonb_array_length(fields), reason = '' WHERE source = $1 AND (fields <> '[]' OR reason <> '')`
)

// dropDrifts forgets what reconciliation has kept of how objects differed. It runs under their locks, which whoever keeps that takes.
func dropDrifts(ctx context.Context, tx pgx.Tx, k keys, ids []int64) error {
	if _, err := tx.Exec(ctx, dropDriftsSQL, k.sources, k.accounts, k.types, k.ids, notNil(ids)); err != nil {
		return fmt.Errorf("forget differences: %w", err)
	}
	return nil
}

// differences clears the fields of all differences of the source, where a value is looked for: some tell what no event does, since a dry run has appended nothing.
func (w *work) differences(ctx context.Context) error {
	if !w.order.scans() || w.order.mentions() { // mentions are looked for in each
		return nil
	}
	if _, err := w.Pool.Exec(ctx, clearDriftsSQL, w.order.Source); err != nil {
		return fmt.Errorf("clear differences: %w", err)
	}
	return nil
}
