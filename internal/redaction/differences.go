package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// deleteDifferencesSQL deletes the stored differences between objects and the provider, for the
	// objects $1 to $4 and those of events.
	deleteDifferencesSQL = `
DELETE FROM drifts d USING ` + affectedObjects + ` WHERE d.source = k.source AND d.account = k.account
	AND d.object_type = k.object_type AND d.object_id = k.object_id`

	// clearDifferencesSQL clears the fields and keeps their number.
	clearDifferencesSQL = `UPDATE drifts SET fields = '[]', more_fields = more_fields + jsonb_array_length(fields),
		reason = ''
		WHERE source = $1 AND (fields <> '[]' OR reason <> '')`
)

// deleteDifferences deletes the differences that reconciliations have stored for objects. It runs
// under the objects' locks, which a reconciliation takes too.
func deleteDifferences(ctx context.Context, tx pgx.Tx, k keys, ids []int64) error {
	if _, err := tx.Exec(ctx, deleteDifferencesSQL, k.sources, k.accounts, k.types, k.ids, notNil(ids)); err != nil {
		return fmt.Errorf("delete differences: %w", err)
	}
	return nil
}

// clearDifferences clears the fields of all differences of the source if a value is searched. Some
// hold data that no event has, because a dry run appends nothing.
func (w *execution) clearDifferences(ctx context.Context) error {
	if !w.params.searchesBodies() || w.params.mentionsOnly() { // mentions are searched in each difference
		return nil
	}
	if _, err := w.Pool.Exec(ctx, clearDifferencesSQL, w.params.Source); err != nil {
		return fmt.Errorf("clear differences: %w", err)
	}
	return nil
}
