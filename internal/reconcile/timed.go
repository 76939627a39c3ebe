package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// timed reads all pages of a stretch of time, without its end, of a list that is of all accounts of the key, and appends what the log lacks.
func (w *work) timed(ctx context.Context, lister provider.TimedLister, since, until time.Time) (fresh []int64, pages int, err error) {
	if w.named(w.order.Account) != "" {
		return nil, 0, runs.Refuse(fmt.Errorf("the API of source %s lists the events of all its accounts together: ask without an account", w.source.Name))
	}
	until = until.Add(-time.Microsecond)
	cursors, keys := map[string]bool{}, map[string]bool{}
	for cursor := ""; ; {
		a, err := w.patiently(ctx, lister.ListTimed(w.source.API, since, until, cursor))
		if err != nil {
			return nil, 0, err
		}
		if a.Verdict.Kind == provider.Missing {
			return nil, 0, runs.Refuse(fmt.Errorf("the API of source %s says that there is no list of events: see api.events", w.source.Name))
		}
		page, next, err := lister.TimedPage(w.source.Config, w.source.API, since, until, cursor, a.Header, a.Body)
		if err != nil {
			return nil, 0, fmt.Errorf("source %s: %w", w.source.Name, w.hide(err))
		}
		var bodies [][]byte
		for _, e := range page { // some that were in the page before may be in this one too
			if e.Key == "" || !keys[e.Key] {
				bodies = append(bodies, e.Body)
			}
			keys[e.Key] = true
		}
		ids, err := w.page(ctx, bodies)
		if err != nil {
			return nil, 0, err
		}
		fresh = append(fresh, ids...)
		if pages++; next == "" {
			return fresh, pages, nil
		}
		if cursors[next] {
			return nil, 0, fmt.Errorf("the API of source %s leads from page to page in a circle", w.source.Name)
		}
		cursors[next], cursor = true, next
	}
}

// manyWitnessPages is how many pages are read for one event.
const manyWitnessPages = 10

// listed asks whether the list of events has one of a time. told: the list was read up to its end there, or as far as the event.
func (f *fetcher) listed(ctx context.Context, lister provider.TimedLister, at time.Time, key string) (known, told bool, err error) {
	cursor := ""
	for range manyWitnessPages {
		a, err := f.call(ctx, lister.ListTimed(f.source.API, at, at, cursor))
		if found, _, err := there(a, err); !found {
			return false, false, err
		}
		page, next, err := lister.TimedPage(f.source.Config, f.source.API, at, at, cursor, a.Header, a.Body)
		if err != nil {
			return false, false, fmt.Errorf("source %s: %w", f.source.Name, f.hide(err))
		}
		if slices.ContainsFunc(page, func(e provider.TimedEvent) bool { return e.Key == key }) {
			return true, true, nil
		}
		if next == "" {
			return false, true, nil
		}
		cursor = next
	}
	return false, false, nil
}
