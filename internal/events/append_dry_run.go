package events

import (
	"bytes"
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// keysSQL looks up keys. The subquery always uses the index, whatever plan an empty table left
// behind.
const keysSQL = `
SELECT d.n, k.id, k.fingerprint FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS d(source, key, n)
CROSS JOIN LATERAL (SELECT k.id, k.fingerprint FROM event_keys k WHERE k.source = d.source AND k.key = d.key LIMIT 1) k`

// defaultRememberedKeys bounds the keys that an AppendDryRun remembers, at about 120 bytes each.
const defaultRememberedKeys = 1 << 20

// AppendDryRun returns the receipts that Append would return for successive batches, and writes
// nothing. Its zero value is ready; it is not for concurrent use.
type AppendDryRun struct {
	// Limit is how many keys of new events are remembered; 0 means a million.
	Limit int
	// LimitExceeded is true if there were more new events than Limit. Later events with the key of
	// an earlier one may then be counted as new.
	LimitExceeded bool
	// newEvents are the new events by their keys.
	newEvents map[rememberedKey]rememberedEvent
}

// rememberedEvent is a new event. It has a rendering only if the version is signed.
type rememberedEvent struct {
	fingerprint [16]byte
	rendering   rendering
}

type rememberedKey struct {
	source int32
	digest [16]byte
}

// Run returns the receipts of each delivery's events in their order. A new event has no id. If a
// key occurs several times in this batch and the earlier ones, each event after the first is a
// duplicate or a conflict.
func (f *AppendDryRun) Run(ctx context.Context, pool *pgxpool.Pool, batch []Delivery) ([][]Receipt, error) {
	rows := sortRowsByKey(batch)
	first := firstOfEachKey(rows)
	if err := lookUpKeys(ctx, pool, batch, first); err != nil {
		return nil, fmt.Errorf("look up the keys of %d deliveries: %w", len(batch), err)
	}
	for _, r := range first {
		f.remember(rememberedKey{batch[r.delivery].Source, r.digest}, r, &batch[r.delivery].Events[r.index])
	}
	fillRepeatedRows(rows)
	if err := findConflicts(ctx, pool, batch, rows); err != nil {
		return nil, fmt.Errorf("look up the renderings of %d deliveries: %w", len(batch), err)
	}
	receipts := make([][]Receipt, len(batch))
	for i := range batch {
		receipts[i] = make([]Receipt, len(batch[i].Events))
	}
	for _, r := range rows {
		receipts[r.delivery][r.index] = r.receipt
	}
	return receipts, nil
}

// remember remembers a new event, or marks it as a duplicate of an earlier one.
func (f *AppendDryRun) remember(key rememberedKey, r *batchRow, e *provider.Event) {
	if r.receipt.Duplicate {
		return
	}
	if before, ok := f.newEvents[key]; ok {
		r.receipt.Duplicate, r.fingerprint, r.rendering = true, before.fingerprint[:], before.rendering
		return
	}
	if e.VersionSigned {
		r.rendering = renderingOf(e)
	}
	if len(f.newEvents) >= cmp.Or(f.Limit, defaultRememberedKeys) {
		f.LimitExceeded = true
		return
	}
	if f.newEvents == nil {
		f.newEvents = map[rememberedKey]rememberedEvent{}
	}
	f.newEvents[key] = rememberedEvent{[16]byte(r.fingerprint), r.rendering}
}

func lookUpKeys(ctx context.Context, pool *pgxpool.Pool, batch []Delivery, rows []*batchRow) error {
	sources, keys := make([]int32, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		sources[i], keys[i] = batch[r.delivery].Source, r.digest[:]
		r.fingerprint = batch[r.delivery].Events[r.index].Fingerprint[:]
	}
	var n int
	var id int64
	var fingerprint []byte
	return postgres.ForEach(ctx, pool, keysSQL, []any{sources, keys}, []any{&n, &id, &fingerprint}, func() error {
		r := rows[n-1]
		r.receipt.ID, r.receipt.Duplicate, r.fingerprint = id, true, bytes.Clone(fingerprint)
		return nil
	})
}
