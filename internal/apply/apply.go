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

// SwapError reports that the objects of some sources are being swapped. No event of these sources
// was applied; all other events of the batch were. It wraps events.ErrUnavailable: applying again
// later is safe and counts no attempt.
type SwapError struct {
	// Sources are the names of these sources.
	Sources []string
}

func (e *SwapError) Error() string {
	return fmt.Sprintf("the objects of %d sources are being swapped: their events are applied after the swap",
		len(e.Sources))
}

func (e *SwapError) Unwrap() error { return events.ErrUnavailable }

// Apply decides a batch of events under a run and commits objects, outcomes and the outbox row in
// one transaction. After nil, every event of the batch has an outcome (perhaps a failed one) and
// may be acknowledged. An error is an infrastructure failure, for example a missing privilege,
// table or column: nothing may be acknowledged, and applying again is safe. An event that cannot be
// written fails alone, because the batch is split until the event is by itself. Apply does not wait
// for a swap: after a *SwapError, all events may be acknowledged except those of its sources.
func (a *Applier) Apply(ctx context.Context, run int64, batch []stream.Event) error {
	return a.apply(ctx, Target{Run: run, swaps: &SwapError{}}, batch)
}

func (a *Applier) apply(ctx context.Context, to Target, batch []stream.Event) error {
	items, err := a.readItems(ctx, batch)
	if err != nil {
		return err
	}
	if items = slices.DeleteFunc(items, to.excludes); len(items) == 0 {
		return nil
	}
	return a.applyItems(ctx, to, items)
}

// readItems returns the events of a batch, each once, as their providers read them.
func (a *Applier) readItems(ctx context.Context, batch []stream.Event) ([]*item, error) {
	if err := a.fetchBodies(ctx, a.Pool, batch); err != nil {
		return nil, err
	}
	if err := a.refreshUnknownSources(ctx, batch); err != nil {
		return nil, err
	}
	items := make([]*item, 0, len(batch))
	seen := make(map[int64]bool, len(batch))
	for i := range batch {
		if !seen[batch[i].ID] { // a second delivery that arrives while the first is in progress
			seen[batch[i].ID] = true
			items = append(items, a.read(&batch[i]))
		}
	}
	return items, nil
}

// refreshUnknownSources reads the sources again if this process does not know one of the batch.
func (a *Applier) refreshUnknownSources(ctx context.Context, batch []stream.Event) error {
	for i := range batch {
		if a.sources.number(batch[i].Source) == 0 {
			return unavailable(a.sources.refresh(ctx, a.Pool))
		}
	}
	return nil
}

// outOfMemory is the SQLSTATE for a lack of memory, and for a batch that takes more locks than the
// server has space for. A smaller batch may succeed.
const outOfMemory = "53200"

// applyItems applies items. It returns a *SwapError if some were left out for a swap.
func (a *Applier) applyItems(ctx context.Context, to Target, items []*item) error {
	err := a.applySplit(ctx, to, items)
	if err == nil && to.swaps != nil && len(to.swaps.Sources) > 0 {
		return to.swaps
	}
	return err
}

// applySplit commits items together. It leaves out those whose source is being swapped, and halves
// the batch as long as an item cannot be written, until that item fails alone.
func (a *Applier) applySplit(ctx context.Context, to Target, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	err := a.commit(ctx, to, items)
	var swap *SwapError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &swap):
		to.swaps.Sources = append(to.swaps.Sources, swap.Sources...)
		return a.applySplit(ctx, to, slices.DeleteFunc(slices.Clone(items),
			func(it *item) bool { return slices.Contains(swap.Sources, it.ev.Source) }))
	case ctx.Err() != nil || errors.Is(err, errGuardFailed) || postgres.NeedsOperator(err) ||
		postgres.IsUnavailable(err) && (postgres.Code(err) != outOfMemory || len(items) == 1):
		return fmt.Errorf("apply %d events: %w: %w", len(items), events.ErrUnavailable, err)
	case len(items) == 1:
		it := *items[0]
		it.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
		a.Logger.Warn("event failed", "event", it.ev.ID, "source", it.ev.Source, "error", err)
		return a.commit(ctx, to, []*item{&it})
	}
	if err := a.applySplit(ctx, to, items[:len(items)/2]); err != nil {
		return err
	}
	return a.applySplit(ctx, to, items[len(items)/2:])
}
