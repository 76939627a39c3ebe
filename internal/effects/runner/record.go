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

// maxRecorded bounds how many endings one transaction records.
const maxRecorded = 500

// recordWithin is for how long what came of the last calls may be recorded at a stop, once they are over.
const recordWithin = 2 * time.Second

// recorder records what came of calls, as many at once as there are, until there are no more. Once whole ends, all that is not recorded is left.
func (d *destination) recorder(whole context.Context, endings <-chan ending, hand <-chan struct{}) {
	for first := range endings {
		batch := []ending{first}
		for len(batch) < maxRecorded && len(endings) > 0 {
			batch = append(batch, <-endings)
		}
		ctx, cancel := context.WithTimeout(whole, d.r.Settings.Margin)
		d.r.tellPeople(d.reach.Name, d.record(ctx, batch))
		cancel()
		d.r.Metrics.ended(d.reach.Name, batch)
		for range batch {
			<-hand
		}
		d.awake()
		d.r.Wake(following(batch))
	}
}

// following are the destinations of calls that are due at once.
func following(batch []ending) (names []string) {
	for _, e := range batch {
		if e.state == effects.Planned || e.state == effects.Failed && e.wait == 0 {
			names = append(names, e.destination)
		}
	}
	return names
}

// record records endings, and goes on trying until ctx ends, which is as long as no other attempt is begun, or until the process has to end: after that another one takes the effects, and what was not recorded is in doubt. What the
// database does not take together is recorded one by one; what it does not take at all is left to a person, and keeps none of the others.
// It gives those that are recorded.
func (d *destination) record(ctx context.Context, batch []ending) (recorded []ending) {
	for lost, unheard := false, false; ; {
		var own []ending
		err := postgres.InTx(ctx, d.r.Pool, "record effects", d.r.Settings.Within, func(ctx context.Context, tx pgx.Tx) (err error) {
			own, err = record(ctx, tx, batch)
			return err
		})
		refused := err != nil && !postgres.IsUnavailable(err) && !postgres.IsRefused(err)
		switch {
		case err == nil && len(own) < len(batch) && unheard:
			d.r.Logger.Warn("what came of effects was recorded by a try before, whose commit was not confirmed, or they were taken by others meanwhile, and their steps are in doubt", "destination", d.reach.Name, "effects", len(batch)-len(own))
			return batch // of which those are that a try before has recorded
		case err == nil && len(own) < len(batch):
			d.r.Logger.Warn("effects were taken by others before their answers came; their steps are in doubt", "destination", d.reach.Name, "effects", len(batch)-len(own))
			return own
		case err == nil:
			return own
		case ctx.Err() != nil || errors.Is(err, postgres.ErrCut):
			d.r.Logger.Error("what came of effects is not known to be recorded; where it is not, their steps are in doubt", "destination", d.reach.Name, "effects", len(batch), "error", err)
			return nil
		case refused && len(batch) > 1:
			for i := range batch {
				recorded = append(recorded, d.record(ctx, batch[i:i+1])...)
			}
			return recorded
		}
		d.r.Logger.Warn("what came of effects not recorded; tried again", "destination", d.reach.Name, "effects", len(batch), "error", err)
		if refused && !lost {
			lost = true
			batch[0].lose(err)
			continue
		}
		unheard = true
		select {
		case <-ctx.Done():
		case <-time.After(d.r.Settings.PollEvery):
		}
	}
}

// lose makes an ending that the database does not take one that a person must see: of its step nobody knows any more what came of it.
func (e *ending) lose(err error) {
	trouble := events.Text(fmt.Sprintf("what came of it cannot be recorded: %v", err))
	e.state, e.reason = effects.Review, trouble
	if e.step != "" {
		e.stepIs, e.captured, e.trouble = effects.Unknown, nil, trouble
		e.reason = fmt.Sprintf("step %s: %s; say what happened with `postern effects resolve`", e.step, trouble)
	}
}
