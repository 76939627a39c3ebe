package redaction

import (
	"context"
	"fmt"
)

// clearDifferencesSQL clears the fields and keeps their number.
const clearDifferencesSQL = `UPDATE drifts SET fields = '[]', more_fields = more_fields + jsonb_array_length(fields),
	reason = ''
	WHERE source = $1 AND (fields <> '[]' OR reason <> '')`

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
