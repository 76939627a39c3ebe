package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// An interval should have a number of pages between these two.
const fewPages, manyPages = 2, 10

// reconcileEvents appends the events that the provider lists and the log lacks. It reads one
// interval of time after the other. The checkpoint is the end of the last interval, in microseconds
// of the provider's clock. It moves only when each event of the interval is in the log and has its
// outcome. A killed run reads its interval again, and events that are in the log by then are
// duplicates.
func (w *execution) reconcileEvents(ctx context.Context) (runs.Status, error) {
	lister, ok := w.Source.Reader.(provider.EventLister)
	if deliveryLister, listsDeliveries := w.Source.Reader.(provider.DeliveryLister); listsDeliveries && !ok {
		return w.reconcileDeliveries(ctx, deliveryLister)
	}
	read := func(since, until time.Time) ([]int64, int, error) { return w.appendInterval(ctx, lister, since, until) }
	if timedLister, listsByTime := w.Source.Reader.(provider.TimedLister); listsByTime && !ok {
		ok, read = true, func(since, until time.Time) ([]int64, int, error) {
			return w.appendTimedInterval(ctx, timedLister, since, until)
		}
	}
	if !ok {
		return "", runs.Permanent(fmt.Errorf("the API of provider %s does not list events: reconcile objects instead",
			w.Source.Provider.Name()))
	}
	if status, err := w.checkRunAccount(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.freezeBounds(ctx); err != nil {
		return "", err
	}
	span := w.settings.InitialInterval
	for w.lease.Cursor < w.lease.Bound {
		since := time.UnixMicro(w.lease.Cursor).UTC()
		until := time.UnixMicro(min(since.Add(span).UnixMicro(), w.lease.Bound)).UTC()
		ids, pages, err := read(since, until)
		if err != nil {
			return "", err
		}
		if status, err := w.waitForOutcomes(ctx, ids); err != nil || status != runs.Running {
			return status, err
		}
		if err := w.raiseWatermark(ctx, until); err != nil {
			return "", err
		}
		if status, err := w.advanceCheckpoint(ctx, until.UnixMicro()); err != nil || status != runs.Running {
			return status, err
		}
		switch {
		case pages > manyPages:
			span = max(span/2, w.settings.MinInterval)
		case pages < fewPages:
			span = min(span*2, w.settings.MaxInterval)
		}
	}
	return runs.Running, nil
}

// freezeBounds fixes the time range of the run.
func (w *execution) freezeBounds(ctx context.Context) error {
	if w.lease.Cursor != 0 {
		return nil
	}
	if err := watermarks.DeleteEnded(ctx, w.Pool, w.params.Source, w.params.Account); err != nil {
		return err
	}
	now := w.Source.Caller.Now()
	if w.lease.Bound == 0 {
		until := now.Add(-w.Limits.ListDelay)
		if !w.params.Until.IsZero() && w.params.Until.Before(until) {
			until = w.params.Until
		}
		if err := w.lease.SetBound(ctx, until.Truncate(time.Second).UnixMicro()); err != nil {
			return err
		}
	}
	since, err := w.startTime(ctx, now)
	if err != nil {
		return err
	}
	_, err = w.lease.Advance(ctx, min(since.Truncate(time.Second).UnixMicro(), w.lease.Bound))
	return err
}

// startTime returns where to start: at the requested time; without one a little before the
// watermark; without a watermark as far back as the provider keeps events.
func (w *execution) startTime(ctx context.Context, now time.Time) (time.Time, error) {
	oldest := now.Add(-w.EventRetention())
	if !w.params.Since.IsZero() { // the provider has no older events, so no older interval can become complete
		return later(w.params.Since, oldest), nil
	}
	from, completeUntil, err := watermarks.InScope(ctx, w.Pool, w.params.Source, w.params.Account,
		watermarks.Events, w.eventScope())
	// the time before a first run over a short range is not complete
	if err != nil || completeUntil.IsZero() || from.After(oldest) {
		return oldest, err
	}
	since := later(completeUntil.Add(-w.Limits.Overlap), oldest)
	if since.UnixMicro() >= w.lease.Bound { // the requested end is before the watermark
		return oldest, nil
	}
	return since, nil
}

// raiseWatermark records that the run's scope is complete from the checkpoint until a time. A dry
// run records nothing.
func (w *execution) raiseWatermark(ctx context.Context, until time.Time) error {
	if w.params.DryRun {
		return nil
	}
	return watermarks.RaiseEvents(ctx, w.Pool, &watermarks.Interval{Source: w.params.Source, Account: w.params.Account,
		Subject: watermarks.Events, Scope: w.eventScope(), Since: time.UnixMicro(w.lease.Cursor).UTC(), Until: until,
		Run: w.lease.Run.ID}, w.params.Since.IsZero(), w.Source.Caller.Now().Add(-w.EventRetention()))
}

// eventScope is a digest of what a run over events reads: the webhooks or lists, and the accounts
// whose events the source accepts. With another scope, events from before a watermark may be listed
// for the first time.
func (w *execution) eventScope() string {
	api, config := w.Source.API, w.Source.Config
	parts := append([]string{config.Account}, slices.Sorted(slices.Values(config.Accounts))...)
	switch lister := w.Source.Reader.(type) {
	case provider.EventLister: // each account has its own list
		allowed := slices.Contains(config.Accounts, "*") ||
			slices.Contains(config.Accounts, providerAccount(w.Source, w.params.Account))
		parts = []string{config.Account, strconv.FormatBool(allowed)}
		parts = append(parts, watermarks.CallParts(lister.ListEvents(api, w.params.Account, watermarks.Epoch,
			watermarks.Epoch, ""))...)
		if idOnly, ok := lister.(provider.IDOnlyEventLister); ok && api.IDOnlyEvents {
			parts = append(parts, watermarks.CallParts(idOnly.ListIDOnlyEvents(api, w.params.Account, watermarks.Epoch,
				watermarks.Epoch, ""))...)
		}
	case provider.DeliveryLister:
		parts = append(parts, slices.Sorted(slices.Values(api.Webhooks))...)
	case provider.TimedLister:
		parts = append(parts, watermarks.CallParts(lister.ListTimed(api, watermarks.Epoch, watermarks.Epoch, ""))...)
	}
	return watermarks.Scope(parts)
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// appendInterval reads all pages of an interval, without its end, and appends the events that the
// log lacks.
func (w *execution) appendInterval(ctx context.Context, lister provider.EventLister, since,
	until time.Time) (stored []int64, pages int, err error) {
	w.missingKeys = nil
	until = until.Add(-time.Microsecond)
	lists := []eventList{lister.ListEvents}
	if idOnly, ok := lister.(provider.IDOnlyEventLister); ok && w.Source.API.IDOnlyEvents {
		lists = append(lists, idOnly.ListIDOnlyEvents)
	}
	for _, list := range lists {
		n, err := w.readEventList(ctx, lister, list, since, until, func(bodies [][]byte) error {
			ids, err := w.appendPage(ctx, bodies)
			stored = append(stored, ids...)
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		pages = max(pages, n)
	}
	return stored, pages, w.countUndelivered(ctx, lister, since, until)
}

// countUndelivered counts which of the missing events the provider reports as undelivered. Without
// missing events it makes no call.
func (w *execution) countUndelivered(ctx context.Context, lister provider.EventLister, since, until time.Time) error {
	undelivered, ok := lister.(provider.UndeliveredLister)
	if !ok || len(w.missingKeys) == 0 {
		return nil
	}
	isMissing := map[string]bool{}
	for _, key := range w.missingKeys {
		isMissing[key] = true
	}
	_, err := w.readEventList(ctx, lister, undelivered.ListUndelivered, since, until, func(bodies [][]byte) error {
		for _, d := range w.toDeliveries(bodies) {
			for _, e := range d.Events {
				if isMissing[e.Key] {
					w.pendingCounts[Undelivered]++
				}
			}
		}
		return nil
	})
	return err
}

// eventList is the call for a page of a list of events.
type eventList func(api *provider.API, account string, since, until time.Time, cursor string) provider.Call

// readEventList reads all pages of a list of events and returns their number.
func (w *execution) readEventList(ctx context.Context, lister provider.EventLister, list eventList, since,
	until time.Time, use func(bodies [][]byte) error) (pages int, err error) {
	for cursor := ""; ; {
		a, err := w.callWithRetry(ctx, list(w.Source.API, w.params.Account, since, until, cursor))
		if err != nil {
			return 0, err
		}
		if a.Verdict.Kind == provider.Missing {
			return 0, fmt.Errorf("the API of source %s finds no list of events: %s", w.Source.Name, a.Verdict.Detail)
		}
		bodies, next, err := lister.EventPage(w.WebhookAccount(w.params.Account), a.Body)
		if err != nil {
			return 0, fmt.Errorf("source %s: %w", w.Source.Name, w.MaskError(err))
		}
		if err := use(bodies); err != nil {
			return 0, err
		}
		if pages++; next == "" {
			return pages, nil
		}
		if next == cursor {
			return 0, fmt.Errorf("the API of source %s gives the same page again and again", w.Source.Name)
		}
		cursor = next
	}
}

// appendPage appends the events of a page. In a dry run it counts those that the log lacks.
func (w *execution) appendPage(ctx context.Context, bodies [][]byte) ([]int64, error) {
	ds := w.toDeliveries(bodies)
	w.pendingCounts[Rejected] += int64(len(bodies) - len(ds))
	if w.params.DryRun {
		return nil, w.countMissing(ctx, ds)
	}
	return w.appendDeliveries(ctx, ds)
}

// toDeliveries converts the events of a page to deliveries, without those of accounts that the
// source does not accept.
func (w *execution) toDeliveries(bodies [][]byte) []events.Delivery {
	ds := make([]events.Delivery, 0, len(bodies))
	received := w.ReceiptTime()
	for _, body := range bodies {
		d := provider.Delivery{Body: body, ReceivedAt: received}
		identified, err := w.Source.Provider.Identify(w.Source.Config, &d)
		if err != nil {
			continue
		}
		ds = append(ds, events.Delivery{Source: w.params.Source, ReceivedAt: received, Origin: events.OriginReconcile,
			Headers: []byte(`{}`), Verification: w.Verification, Body: body, Events: identified})
	}
	return ds
}

// Rejected counts events that the source does not accept, because their account is not allowed.
const Rejected = "rejected"

// countMissing counts the events of some deliveries that are in the log, and those that are not.
func (w *execution) countMissing(ctx context.Context, ds []events.Delivery) error {
	var names []string
	var keys [][]byte
	for i := range ds {
		for _, e := range ds[i].Events {
			digest := events.KeyDigest(e.Key)
			names, keys = append(names, e.Key), append(keys, digest[:])
		}
	}
	stored, err := w.storedEvents(ctx, keys)
	if err != nil {
		return err
	}
	missing := 0
	for i, key := range keys {
		if _, ok := stored[[16]byte(key)]; !ok {
			missing++
			w.missingKeys = append(w.missingKeys, names[i])
		}
	}
	w.pendingCounts[Processed] += int64(len(keys))
	w.pendingCounts[Present] += int64(len(keys) - missing)
	w.pendingCounts[Missing] += int64(missing)
	return nil
}

// maxCallAttempts is how often a call is made before its temporary failure is returned. The Caller
// keeps within the budget, and waits for the pauses that the provider requests.
const maxCallAttempts = 6

// callWithRetry repeats a call after a temporary failure. Otherwise all pages of the interval would
// be read again.
func (w *execution) callWithRetry(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	for try := 1; ; try++ {
		a, err := w.Call(ctx, c)
		var temporary *providerapi.TemporaryError
		if try == maxCallAttempts || !errors.As(err, &temporary) {
			return a, err
		}
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return nil, errors.Join(err, temporary)
		}
		runs.Sleep(ctx, w.settings.RetryDelay<<try)
	}
}
