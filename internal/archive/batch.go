package archive

import (
	"context"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// flush appends the batch and counts what came of it.
func (r *importer) flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := r.appendAll(ctx, r.batch); err != nil {
		return err
	}
	clear(r.batch)
	clear(r.groups)
	r.batch, r.n, r.size, r.joined = r.batch[:0], 0, 0, 0
	if r.Progress != nil {
		r.Progress(r.done + r.counts.Read)
	}
	return nil
}

// appendAll appends deliveries. Where PostgreSQL cannot hold one (a header with NUL, say), it is found by halves and set aside, and the rest goes in.
func (r *importer) appendAll(ctx context.Context, batch []pending) error {
	if len(batch) == 0 {
		return nil
	}
	deliveries := make([]events.Delivery, len(batch))
	for i := range batch {
		deliveries[i] = batch[i].delivery
	}
	do := events.Append
	if r.DryRun {
		do = r.foresight.Foresee
	}
	receipts, err := do(ctx, r.Pool, deliveries)
	switch {
	case err == nil:
		r.count(batch, receipts)
		return nil
	case !strings.HasPrefix(postgres.Code(err), "22"): // no fault of the data
		return err
	case len(batch) > 1:
		if err := r.appendAll(ctx, batch[:len(batch)/2]); err != nil {
			return err
		}
		return r.appendAll(ctx, batch[len(batch)/2:])
	}
	for i := range batch[0].entries {
		if err := r.setAside(&batch[0].entries[i], err); err != nil {
			return err
		}
	}
	return nil
}

func (r *importer) count(batch []pending, receipts [][]events.Receipt) {
	for i, of := range receipts {
		for _, one := range of {
			switch {
			case one.Conflict:
				r.counts.Conflict++
				if batch[i].entries[0].made { // a row, which no other entry joins
					r.counts.MadeConflict++
				}
			case one.Duplicate:
				r.counts.Duplicate++
			default:
				r.counts.New++
			}
		}
	}
}
