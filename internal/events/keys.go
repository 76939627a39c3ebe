package events

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/provider"
)

// keysSQL looks keys up; the subquery keeps to the index whatever plan an empty table left behind.
const keysSQL = `
SELECT d.n, k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k`

// foreseenKeys bounds the keys that a Foresight remembers, at about 120 bytes each.
const foreseenKeys = 1 << 20

// Foresight says of one batch after the other what Append would answer if it appended them, and writes nothing. Its zero value is ready; it is not for
// concurrent use.
type Foresight struct {
	// Limit is how many keys of new events are remembered; 0: a million.
	Limit int
	// AtMost: more events than that were new, so that of what followed some may be counted as new that have the key of an earlier one.
	AtMost bool
	// seen are new events by their keys.
	seen map[foreseenKey]foreseen
}

// foreseen is a new event; its rendering only where the version is signed.
type foreseen struct {
	fingerprint [16]byte
	rendering   rendering
}

type foreseenKey struct {
	source int32
	digest [16]byte
}

// Foresee returns receipts of each delivery's events in their order, without an id where the event would be new. Of a key that this batch or an earlier one
// has already, all but the first are duplicates, or conflicts.
func (f *Foresight) Foresee(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	rows := sortedRows(batch)
	first := firsts(rows)
	if err := foresee(ctx, pool, batch, first); err != nil {
		return nil, fmt.Errorf("look up the keys of %d deliveries: %w", len(batch), err)
	}
	for _, r := range first {
		f.remember(foreseenKey{batch[r.delivery].Source, r.digest}, r, &batch[r.delivery].Events[r.place])
	}
	answerTwins(rows)
	if err := findConflicts(ctx, pool, batch, rows); err != nil {
		return nil, fmt.Errorf("look up the renderings of %d deliveries: %w", len(batch), err)
	}
	receipts := make([][]Receipt, len(batch))
	for i := range batch {
		receipts[i] = make([]Receipt, len(batch[i].Events))
	}
	for _, r := range rows {
		receipts[r.delivery][r.place] = r.receipt
	}
	return receipts, nil
}

// remember keeps an event that would be new, or finds that one before it would have been.
func (f *Foresight) remember(key foreseenKey, r *row, e *provider.Event) {
	if r.receipt.Duplicate {
		return
	}
	if before, ok := f.seen[key]; ok {
		r.receipt.Duplicate, r.fingerprint, r.rendering = true, before.fingerprint[:], before.rendering
		return
	}
	if e.VersionSigned {
		r.rendering = renderingOf(e)
	}
	if len(f.seen) >= cmp.Or(f.Limit, foreseenKeys) {
		f.AtMost = true
		return
	}
	if f.seen == nil {
		f.seen = map[foreseenKey]foreseen{}
	}
	f.seen[key] = foreseen{[16]byte(r.fingerprint), r.rendering}
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
