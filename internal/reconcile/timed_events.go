package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// appendTimedInterval reads all pages of an interval, without its end, of a list that covers all
// accounts of the key. It appends the events that the log lacks.
func (w *execution) appendTimedInterval(ctx context.Context, lister provider.TimedLister, since,
	until time.Time) (stored []int64, pages int, err error) {
	if w.WebhookAccount(w.params.Account) != "" {
		return nil, 0, runs.Permanent(fmt.Errorf("the API of source %s lists the events of all its accounts together: "+
			"ask without an account", w.Source.Name))
	}
	until = until.Add(-time.Microsecond)
	cursors, keys := map[string]bool{}, map[string]bool{}
	for cursor := ""; ; {
		a, err := w.callWithRetry(ctx, lister.ListTimed(w.Source.API, since, until, cursor))
		if err != nil {
			return nil, 0, err
		}
		if a.Verdict.Kind == provider.Missing {
			return nil, 0, runs.Permanent(fmt.Errorf("the API of source %s finds no list of events: see "+
				"api.events", w.Source.Name))
		}
		page, next, err := lister.TimedPage(w.Source.Config, w.Source.API, since, until, cursor, a.Header, a.Body)
		if err != nil {
			return nil, 0, fmt.Errorf("source %s: %w", w.Source.Name, w.MaskError(err))
		}
		var bodies [][]byte
		for _, e := range page { // some events of the previous page may be in this one too
			if e.Key == "" || !keys[e.Key] {
				bodies = append(bodies, e.Body)
			}
			keys[e.Key] = true
		}
		ids, err := w.appendPage(ctx, bodies)
		if err != nil {
			return nil, 0, err
		}
		stored = append(stored, ids...)
		if pages++; next == "" {
			return stored, pages, nil
		}
		if cursors[next] {
			return nil, 0, fmt.Errorf("the pages of the API of source %s form a cycle", w.Source.Name)
		}
		cursors[next], cursor = true, next
	}
}
