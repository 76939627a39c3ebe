package apply

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

const insertChangesSQL = `
INSERT INTO outbox (sources, accounts, types, ids, created_at, forward_pending)
VALUES ($1, $2, $3, $4, clock_now(), $5) RETURNING batch`

// insertChanges inserts one row into the outbox for all changes of the transaction. forward says
// that effects that forward changes have to be planned.
func insertChanges(ctx context.Context, tx pgx.Tx, objs []*versioning.Object, forward bool) (batch int64, err error) {
	if len(objs) == 0 {
		return 0, nil
	}
	keys := versioning.KeyArgs(objs, func(o *versioning.Object) versioning.Key { return o.Key })
	if err := tx.QueryRow(ctx, insertChangesSQL, append(keys, forward)...).Scan(&batch); err != nil {
		return 0, fmt.Errorf("insert %d changes: %w", len(objs), err)
	}
	return batch, nil
}
