package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// maxBatch bounds how many results one transaction records.
const maxBatch = 500

// recordTimeout bounds the recording of the last results during a stop, after their calls have
// ended.
const recordTimeout = 2 * time.Second

// recordResults records results in batches until the channel is closed. After process ends, results
// that are not recorded are lost.
func (d *destination) recordResults(process context.Context, results <-chan result, inProgress <-chan struct{}) {
	for first := range results {
		batch := []result{first}
		for len(batch) < maxBatch && len(results) > 0 {
			batch = append(batch, <-results)
		}
		ctx, cancel := context.WithTimeout(process, d.r.Settings.LeaseMargin)
		d.r.logNeedsReview(d.config.Name, d.record(ctx, batch))
		cancel()
		d.r.Metrics.countResults(d.config.Name, batch)
		for range batch {
			<-inProgress
		}
		d.notify()
		d.r.Wake(dueDestinations(batch))
	}
}

// dueDestinations returns the destinations that have a step due at once.
func dueDestinations(batch []result) (names []string) {
	for _, e := range batch {
		if e.state == effects.Planned || e.state == effects.Failed && e.delay == 0 {
			names = append(names, e.destination)
		}
	}
	return names
}

// record records results and returns those that are recorded. It retries until ctx ends, because
// until then no other attempt starts. After that, another process leases the effects, and the
// outcome of the steps is unknown. Results that the database rejects as a batch are recorded one by
// one. A result that it rejects alone needs review, and does not block the others.
func (d *destination) record(ctx context.Context, batch []result) (recorded []result) {
	for degraded, unconfirmed := false, false; ; {
		var saved []result
		err := postgres.InTx(ctx, d.r.Pool, "record effects", d.r.Settings.TxTimeout,
			func(ctx context.Context, tx pgx.Tx) (err error) {
				saved, err = record(ctx, tx, batch)
				return err
			})
		rejected := err != nil && !postgres.IsUnavailable(err) && !postgres.NeedsOperator(err)
		switch {
		case err == nil && len(saved) < len(batch) && unconfirmed:
			d.r.Logger.Warn("results of effects were recorded by an earlier try, whose commit was not confirmed, or "+
				"other processes leased them meanwhile, so that the outcome of their steps is unknown", "destination",
				d.config.Name, "effects", len(batch)-len(saved))
			return batch // an earlier try has recorded some of them
		case err == nil && len(saved) < len(batch):
			d.r.Logger.Warn("other processes leased effects before their responses came; the outcome of their steps "+
				"is unknown", "destination", d.config.Name, "effects", len(batch)-len(saved))
			return saved
		case err == nil:
			return saved
		case ctx.Err() != nil || errors.Is(err, postgres.ErrConnectionsClosed):
			d.r.Logger.Error("results of effects may not be recorded; if not, the outcome of their steps is "+
				"unknown", "destination", d.config.Name, "effects", len(batch), "error", err)
			return nil
		case rejected && len(batch) > 1:
			for i := range batch {
				recorded = append(recorded, d.record(ctx, batch[i:i+1])...)
			}
			return recorded
		}
		d.r.Logger.Warn("results of effects not recorded; retrying", "destination", d.config.Name, "effects",
			len(batch), "error", err)
		if rejected && !degraded {
			degraded = true
			batch[0].markUnrecordable(err)
			continue
		}
		unconfirmed = true
		select {
		case <-ctx.Done():
		case <-time.After(d.r.Settings.PollEvery):
		}
	}
}

// markUnrecordable changes a result that the database rejects, so that an operator has to act. The
// outcome of its step is unknown.
func (e *result) markUnrecordable(err error) {
	message := events.SanitizeText(fmt.Sprintf("the result cannot be recorded: %v", err))
	e.state, e.reason = effects.Review, message
	if e.step != "" {
		e.stepState, e.captured, e.message = effects.Unknown, nil, message
		e.reason = fmt.Sprintf("step %s: %s; say what happened with `postern effects resolve`", e.step, message)
	}
}
