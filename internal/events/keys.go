package events

import (
	"bytes"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// keysSQL looks keys up; the subquery keeps to the index whatever plan an empty table left behind.
const keysSQL = `
SELECT d.n, k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k`

// Foresee says what Append would answer now, and writes nothing: receipts of each delivery's events in their order, without an id where the event
// would be new. Of a key that the batch has twice the second is a duplicate.
func Foresee(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	rows := sortedRows(batch)
	first := firsts(rows)
	if err := foresee(ctx, pool, batch, first); err != nil {
		return nil, fmt.Errorf("look up the keys of %d deliveries: %w", len(batch), err)
	}
	answerTwins(rows)
	receipts := make([][]Receipt, len(batch))
	for i := range batch {
		receipts[i] = make([]Receipt, len(batch[i].Events))
	}
	for _, r := range rows {
		r.receipt.Conflict = !bytes.Equal(r.fingerprint, batch[r.delivery].Events[r.place].Fingerprint[:])
		receipts[r.delivery][r.place] = r.receipt
	}
	return receipts, nil
}

func foresee(ctx context.Context, pool *pgxpool.Pool, batch []Delivery, rows []*row) error {
	sources, keys := make([]int32, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		sources[i], keys[i] = batch[r.delivery].Source, r.digest[:]
		r.fingerprint = batch[r.delivery].Events[r.place].Fingerprint[:]
	}
	found, err := pool.Query(ctx, keysSQL, sources, keys)
	if err != nil {
		return err
	}
	var n int
	var id int64
	var fingerprint []byte
	_, err = pgx.ForEachRow(found, []any{&n, &id, &fingerprint}, func() error {
		r := rows[n-1]
		r.receipt.ID, r.receipt.Duplicate, r.fingerprint = id, true, bytes.Clone(fingerprint)
		return nil
	})
	return err
}
