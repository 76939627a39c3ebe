package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// newOverwrite starts a refetch that wins over all local history. It waits for the API's lag, so
// that the response cannot be older than the states that it replaces.
func (w *execution) newOverwrite(ctx context.Context) *provider.Overwrite {
	requestedAt := time.Now().UTC().Truncate(time.Microsecond)
	runs.Sleep(ctx, w.Source.Reader.Lag())
	return &provider.Overwrite{Before: requestedAt, Actor: w.lease.Actor, Reason: w.lease.Reason}
}

// refetchObject refetches one object.
func (w *execution) refetchObject(ctx context.Context) (runs.Status, error) {
	if w.lease.Bound == 0 {
		if err := w.lease.SetBound(ctx, 1); err != nil {
			return "", err
		}
	}
	if w.params.Overwrite {
		w.Overwrite = w.newOverwrite(ctx)
	}
	d, err := w.Refetch(ctx, versioning.Key{Account: w.params.Account, Type: w.params.Type, ID: w.params.ID})
	if errors.Is(err, refetch.ErrNoFetch) {
		return "", runs.Permanent(fmt.Errorf("source %s, %s: %w", w.Source.Name, w.params.Type, err))
	}
	if refetch.IsOtherObject(err) || errors.As(err, new(*refetch.OtherAccountError)) ||
		errors.As(err, new(*refetch.MissingUnconfirmedError)) {
		return "", runs.Permanent(err)
	}
	if err != nil {
		return "", err
	}
	unknown, err := w.IsUnknownObject(ctx, d)
	if err != nil {
		return "", err
	}
	if unknown {
		w.pendingCounts[Processed]++
		w.pendingCounts[Absent]++
	}
	if unknown || w.params.DryRun {
		return w.advanceCheckpoint(ctx, 1)
	}
	appended, err := w.appendDeliveries(ctx, []events.Delivery{*d})
	if err != nil {
		return "", err
	}
	if status, err := w.waitForOutcomes(ctx, appended); err != nil || status != runs.Running {
		return status, err
	}
	return w.advanceCheckpoint(ctx, 1)
}

// Absent counts objects that neither the mirror nor the API has. Nothing is appended for them.
const Absent = "absent"
