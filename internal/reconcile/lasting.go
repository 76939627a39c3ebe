package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/runs"
)

// lasting ends the run with what its lists have met, where it was put off so often in a row that the trouble will not pass, and the API is well otherwise: it would keep the next runs of its schedule waiting
// for ever. The other types are done by then.
func (w *work) lasting(ctx context.Context, err error) error {
	var list *listError
	if w.hold.Troubles < w.Settings.Tries || ctx.Err() != nil || !errors.As(err, &list) {
		return err
	}
	if _, bad := w.control(ctx, w.order.Account); bad != nil { // it is not the list's trouble
		return bad
	}
	rest := "the other types are done"
	if w.order.Type != "" {
		rest = "type " + w.order.Type
	}
	return runs.Refuse(fmt.Errorf("tried %d times in a row, and given up, so that later runs are not kept waiting; %s: %w", w.hold.Troubles+1, rest, err))
}

// absentError: the call that shows that the key is good finds nothing.
type absentError struct{ text string }

func (e *absentError) Error() string { return e.text }

// absent ends the run where that was so each time it was tried: a person must change something.
func (w *work) absent(err error) error {
	if w.hold.Troubles < w.Settings.Tries || !errors.As(err, new(*absentError)) {
		return err
	}
	return runs.Refuse(fmt.Errorf("tried %d times in a row, and given up, so that later runs are not kept waiting: %w", w.hold.Troubles+1, err))
}
