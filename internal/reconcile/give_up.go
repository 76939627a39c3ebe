package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// giveUpOnList fails a run that was deferred too often because of its lists, while the API works
// otherwise. Such a failure will not pass, and would block the next runs of the schedule. The other
// types are done by then.
func (w *execution) giveUpOnList(ctx context.Context, err error) error {
	var list *listError
	if w.lease.ConsecutiveFailures < w.settings.MaxDeferrals || ctx.Err() != nil || !errors.As(err, &list) {
		return err
	}
	if _, bad := w.CheckKey(ctx, w.params.Account); bad != nil { // the failure is not limited to the list
		return bad
	}
	rest := "the other types are done"
	if w.params.Type != "" {
		rest = "type " + w.params.Type
	}
	return runs.Permanent(fmt.Errorf("the run was tried %d times in a row and is given up, so that later runs can "+
		"start; %s: %w", w.lease.ConsecutiveFailures+1, rest, err))
}

// giveUpOnAbsent fails a run whose key check found nothing in each attempt. An operator must change
// the configuration.
func (w *execution) giveUpOnAbsent(err error) error {
	if w.lease.ConsecutiveFailures < w.settings.MaxDeferrals || !errors.As(err, new(*refetch.AbsentError)) {
		return err
	}
	return runs.Permanent(fmt.Errorf("the run was tried %d times in a row and is given up, so that later runs can "+
		"start: %w", w.lease.ConsecutiveFailures+1, err))
}

// deferForBudget defers a run that waits for calls. It returns any other error unchanged.
func (w *execution) deferForBudget(err error) error {
	var spent *providerapi.MonthlyBudgetError
	if !errors.As(err, &spent) {
		return err
	}
	return runs.Requeue(min(spent.Wait, w.settings.MaxPollDelay), spent.Error())
}
