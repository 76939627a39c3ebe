package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Apply decides a batch of events under a run and commits objects, outcomes and the outbox row in
// one transaction. After nil, every event of the batch has an outcome (perhaps a failed one) and
// may be acknowledged. An error is an infrastructure failure, for example a missing privilege,
// table or column: nothing may be acknowledged, and applying again is safe. An event that cannot be
// written fails alone, because the batch is split until the event is by itself.
func (a *Applier) Apply(ctx context.Context, run int64, evs []stream.Event) error {
	return a.apply(ctx, Target{Run: run}, evs)
}

func (a *Applier) apply(ctx context.Context, to Target, evs []stream.Event) error {
	batch, err := a.readBatch(ctx, evs)
	if err != nil {
		return err
	}
	if batch = slices.DeleteFunc(batch, to.excludes); len(batch) == 0 {
		return nil
	}
	return a.applyBatch(ctx, to, batch)
}

// readBatch returns the events of a batch, each once, as their providers read them.
func (a *Applier) readBatch(ctx context.Context, evs []stream.Event) ([]*event, error) {
	if err := a.fetchBodies(ctx, a.Pool, evs); err != nil {
		return nil, err
	}
	if err := a.refreshUnknownSources(ctx, evs); err != nil {
		return nil, err
	}
	batch := make([]*event, 0, len(evs))
	seen := make(map[int64]bool, len(evs))
	for i := range evs {
		if !seen[evs[i].ID] { // a second delivery that arrives while the first is in progress
			seen[evs[i].ID] = true
			batch = append(batch, a.read(&evs[i]))
		}
	}
	return batch, nil
}

// refreshUnknownSources reads the sources again if this process does not know one of the batch.
func (a *Applier) refreshUnknownSources(ctx context.Context, evs []stream.Event) error {
	for i := range evs {
		if a.sources.number(evs[i].Source) == 0 {
			return unavailable(a.sources.refresh(ctx, a.Pool))
		}
	}
	return nil
}

// outOfMemory is the SQLSTATE for a lack of memory, and for a batch that takes more locks than the
// server has space for. A smaller batch may succeed.
const outOfMemory = "53200"

// applyBatch commits events together. It halves the batch as long as an event cannot be written,
// until that event fails alone.
func (a *Applier) applyBatch(ctx context.Context, to Target, batch []*event) error {
	err := a.commit(ctx, to, batch)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil || errors.Is(err, errGuardFailed) || postgres.NeedsOperator(err) ||
		postgres.IsUnavailable(err) && (postgres.Code(err) != outOfMemory || len(batch) == 1):
		return fmt.Errorf("apply %d events: %w: %w", len(batch), events.ErrUnavailable, err)
	case len(batch) == 1:
		e := *batch[0]
		e.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
		a.Logger.Warn("event failed", "event", e.ev.ID, "source", e.ev.Source, "error", err)
		return a.commit(ctx, to, []*event{&e})
	}
	if err := a.applyBatch(ctx, to, batch[:len(batch)/2]); err != nil {
		return err
	}
	return a.applyBatch(ctx, to, batch[len(batch)/2:])
}
