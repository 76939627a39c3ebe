package archive

import (
	"context"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// flushBatch appends the batch and counts the results.
func (r *importer) flushBatch(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.appendDeliveries(ctx, r.batch); err != nil {
		return err
	}
	clear(r.batch)
	clear(r.groups)
	r.batch, r.eventCount, r.byteCount, r.joinedByteCount = r.batch[:0], 0, 0, 0
	if r.Progress != nil {
		r.Progress(r.earlierEntries + r.counts.Read)
	}
	return nil
}

// appendDeliveries appends deliveries. If PostgreSQL cannot store one of them (for example a header
// with NUL), it bisects the batch, sets that one aside as bad, and appends the rest.
func (r *importer) appendDeliveries(ctx context.Context, batch []pending) error {
	if len(batch) == 0 {
		return nil
	}
	deliveries := make([]events.Delivery, len(batch))
	for i := range batch {
		deliveries[i] = batch[i].delivery
	}
	appendFunc := events.Append
	if r.DryRun {
		appendFunc = r.appendDryRun.Run
	}
	receipts, err := appendFunc(ctx, r.Pool, deliveries)
	switch {
	case err == nil:
		r.countReceipts(receipts)
		return nil
	case !strings.HasPrefix(postgres.Code(err), "22"): // the error is not caused by the data
		return err
	case len(batch) > 1:
		if err := r.appendDeliveries(ctx, batch[:len(batch)/2]); err != nil {
			return err
		}
		return r.appendDeliveries(ctx, batch[len(batch)/2:])
	}
	for i := range batch[0].entries {
		if err := r.setAside(&batch[0].entries[i], err); err != nil {
			return err
		}
	}
	return nil
}

func (r *importer) countReceipts(receipts [][]events.Receipt) {
	for _, of := range receipts {
		for _, one := range of {
			switch {
			case one.Conflict:
				r.counts.Conflict++
			case one.Duplicate:
				r.counts.Duplicate++
			default:
				r.counts.Added++
			}
		}
	}
}
