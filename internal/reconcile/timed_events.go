package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// appendTimedInterval reads all pages of an interval, without its end, of a list that covers all
// accounts of the key. It appends the events that the log lacks.
func (w *execution) appendTimedInterval(ctx context.Context, lister provider.TimedLister, since,
	until time.Time) (stored []int64, pages int, err error) {
	if w.webhookAccount(w.params.Account) != "" {
		return nil, 0, runs.Permanent(fmt.Errorf("the API of source %s lists the events of all its accounts together: "+
			"ask without an account", w.source.Name))
	}
	until = until.Add(-time.Microsecond)
	cursors, keys := map[string]bool{}, map[string]bool{}
	for cursor := ""; ; {
		a, err := w.callWithRetry(ctx, lister.ListTimed(w.source.API, since, until, cursor))
		if err != nil {
			return nil, 0, err
		}
		if a.Verdict.Kind == provider.Missing {
			return nil, 0, runs.Permanent(fmt.Errorf("the API of source %s finds no list of events: see "+
				"api.events", w.source.Name))
		}
		page, next, err := lister.TimedPage(w.source.Config, w.source.API, since, until, cursor, a.Header, a.Body)
		if err != nil {
			return nil, 0, fmt.Errorf("source %s: %w", w.source.Name, w.maskError(err))
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
			return nil, 0, fmt.Errorf("the pages of the API of source %s form a cycle", w.source.Name)
		}
		cursors[next], cursor = true, next
	}
}

// maxSamplePages is how many pages are read for one event.
const maxSamplePages = 10

// findInTimedList reports whether the list of events has an event at a time. conclusive: the list
// was read up to its end there, or up to the event.
func (f *fetcher) findInTimedList(ctx context.Context, lister provider.TimedLister, at time.Time, key string) (found,
	conclusive bool, err error) {
	cursor := ""
	for range maxSamplePages {
		a, err := f.call(ctx, lister.ListTimed(f.source.API, at, at, cursor))
		if found, _, err := classifyLookup(a, err); !found {
			return false, false, err
		}
		page, next, err := lister.TimedPage(f.source.Config, f.source.API, at, at, cursor, a.Header, a.Body)
		if err != nil {
			return false, false, fmt.Errorf("source %s: %w", f.source.Name, f.maskError(err))
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
