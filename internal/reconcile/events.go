package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// slices of a walk aim at this many pages.
const fewPages, manyPages = 2, 10

// events appends what the provider has told and the log lacks. It goes through time, a stretch after the other: the checkpoint is how far, in
// microseconds of the provider's clock, and moves only when everything in the stretch is in the log and has its outcome. Killed anywhere, the
// stretch in hand is read again, and what is there already is a duplicate.
func (w *work) events(ctx context.Context) (runs.Status, error) {
	lister, ok := w.source.Reader.(provider.EventLister)
	if sent, both := w.source.Reader.(provider.DeliveryLister); both && !ok {
		return w.deliveries(ctx, sent)
	}
	read := func(since, until time.Time) ([]int64, int, error) { return w.stretch(ctx, lister, since, until) }
	if timed, by := w.source.Reader.(provider.TimedLister); by && !ok {
		ok, read = true, func(since, until time.Time) ([]int64, int, error) { return w.timed(ctx, timed, since, until) }
	}
	if !ok {
		return "", runs.Refuse(fmt.Errorf("the API of provider %s does not list events: reconcile objects instead", w.source.Provider.Name()))
	}
	if status, err := w.own(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.begin(ctx); err != nil {
		return "", err
	}
	span := w.Settings.Span
	for w.hold.Cursor < w.hold.Bound {
		since := time.UnixMicro(w.hold.Cursor).UTC()
		until := time.UnixMicro(min(since.Add(span).UnixMicro(), w.hold.Bound)).UTC()
		fresh, pages, err := read(since, until)
		if err != nil {
			return "", err
		}
		if status, err := w.settled(ctx, fresh); err != nil || status != runs.Running {
			return status, err
		}
		if err := w.proven(ctx, until); err != nil {
			return "", err
		}
		if status, err := w.advance(ctx, until.UnixMicro()); err != nil || status != runs.Running {
			return status, err
		}
		switch {
		case pages > manyPages:
			span = max(span/2, w.Settings.MinSpan)
		case pages < fewPages:
			span = min(span*2, w.Settings.MaxSpan)
		}
	}
	return runs.Running, nil
}

// begin freezes the bounds of the time to look through.
func (w *work) begin(ctx context.Context) error {
	if w.hold.Cursor != 0 {
		return nil
	}
	if _, err := w.Pool.Exec(ctx, forgottenSQL, w.order.Source, w.order.Account); err != nil {
		return fmt.Errorf("forget what ended runs have read: %w", err)
	}
	now := w.source.Caller.Now()
	if w.hold.Bound == 0 {
		until := now.Add(-w.Settings.Settle)
		if !w.order.Until.IsZero() && w.order.Until.Before(until) {
			until = w.order.Until
		}
		if err := w.hold.Freeze(ctx, until.Truncate(time.Second).UnixMicro()); err != nil {
			return err
		}
	}
	since, err := w.since(ctx, now)
	if err != nil {
		return err
	}
	_, err = w.hold.Advance(ctx, min(since.Truncate(time.Second).UnixMicro(), w.hold.Bound))
	return err
}

const watermarkSQL = `SELECT since, until FROM watermarks WHERE source = $1 AND account = $2 AND what = $3`

// since is where to begin: where was asked for, else a little before what is proven, else as far back as the provider knows.
func (w *work) since(ctx context.Context, now time.Time) (time.Time, error) {
	oldest := now.Add(-w.kept())
	if !w.order.Since.IsZero() { // further back than the provider knows nothing can be proven
		return later(w.order.Since, oldest), nil
	}
	from, proven, err := w.provenOf(ctx, Events, w.reads())
	if err != nil || proven.IsZero() || from.After(oldest) { // what lies before a first run over a short time is not proven
		return oldest, err
	}
	since := later(proven.Add(-w.Settings.Overlap), oldest)
	if since.UnixMicro() >= w.hold.Bound { // asked for up to a time before what is proven
		return oldest, nil
	}
	return since, nil
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// stretch reads all pages of a stretch of time, without its end, and appends what the log lacks.
func (w *work) stretch(ctx context.Context, lister provider.EventLister, since, until time.Time) (fresh []int64, pages int, err error) {
	w.lacked = nil
	until = until.Add(-time.Microsecond)
	lists := []eventList{lister.ListEvents}
	if thin, ok := lister.(provider.ThinLister); ok && w.source.API.ThinEvents {
		lists = append(lists, thin.ListThinEvents)
	}
	for _, list := range lists {
		n, err := w.list(ctx, lister, list, since, until, func(bodies [][]byte) error {
			ids, err := w.page(ctx, bodies)
			fresh = append(fresh, ids...)
			return err
		})
		if err != nil {
			return nil, 0, err
		}
		pages = max(pages, n)
	}
	return fresh, pages, w.undelivered(ctx, lister, since, until)
}

// undelivered counts which of the events that the log lacked the provider has not delivered by its own account. Where it lacked nothing nobody is asked.
func (w *work) undelivered(ctx context.Context, lister provider.EventLister, since, until time.Time) error {
	teller, ok := lister.(provider.UndeliveredLister)
	if !ok || len(w.lacked) == 0 {
		return nil
	}
	lacked := map[string]bool{}
	for _, key := range w.lacked {
		lacked[key] = true
	}
	_, err := w.list(ctx, lister, teller.ListUndelivered, since, until, func(bodies [][]byte) error {
		for _, d := range w.told(bodies) {
			for _, e := range d.Events {
				if lacked[e.Key] {
					w.counts[Undelivered]++
				}
			}
		}
		return nil
	})
	return err
}

// eventList asks for a page of a list of events.
type eventList func(api *provider.API, account string, since, until time.Time, cursor string) provider.Call

// list reads all pages of a list of events, and says how many there were.
func (w *work) list(ctx context.Context, lister provider.EventLister, list eventList, since, until time.Time, use func(bodies [][]byte) error) (pages int, err error) {
	for cursor := ""; ; {
		a, err := w.patiently(ctx, list(w.source.API, w.order.Account, since, until, cursor))
		if err != nil {
			return 0, err
		}
		if a.Verdict.Kind == provider.Missing {
			return 0, fmt.Errorf("the API of source %s says that there is no list of events: %s", w.source.Name, a.Verdict.Detail)
		}
		bodies, next, err := lister.EventPage(w.named(w.order.Account), a.Body)
		if err != nil {
			return 0, fmt.Errorf("source %s: %w", w.source.Name, w.hide(err))
		}
		if err := use(bodies); err != nil {
			return 0, err
		}
		if pages++; next == "" {
			return pages, nil
		}
		if next == cursor {
			return 0, fmt.Errorf("the API of source %s gives the same page again and again", w.source.Name)
		}
		cursor = next
	}
}

// page appends the events of a page, or counts what the log lacks of them.
func (w *work) page(ctx context.Context, bodies [][]byte) ([]int64, error) {
	ds := w.told(bodies)
	w.counts[Refused] += int64(len(bodies) - len(ds))
	if w.order.DryRun {
		return nil, w.compare(ctx, ds)
	}
	return w.append(ctx, ds)
}

// told are the events of a page as deliveries, without those of accounts that the source does not take.
func (w *work) told(bodies [][]byte) []events.Delivery {
	ds := make([]events.Delivery, 0, len(bodies))
	received := w.received()
	for _, body := range bodies {
		d := provider.Delivery{Body: body, ReceivedAt: received}
		named, err := w.source.Provider.Identify(w.source.Config, &d)
		if err != nil {
			continue
		}
		ds = append(ds, events.Delivery{Source: w.order.Source, ReceivedAt: received, Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: w.proof,
			Body: body, Events: named})
	}
	return ds
}

// Refused counts events that the source takes from nobody, since they are of an account that it does not allow.
const Refused = "refused"

const knownSQL = `
SELECT count(*) FROM unnest($2::bytea[]) AS d(key) CROSS JOIN LATERAL (SELECT k.id FROM event_keys k WHERE k.source = $1 AND k.key = d.key LIMIT 1) k`

// compare counts what of some deliveries is in the log.
func (w *work) compare(ctx context.Context, ds []events.Delivery) error {
	var names []string
	var keys [][]byte
	for i := range ds {
		for _, e := range ds[i].Events {
			digest := events.KeyDigest(e.Key)
			names, keys = append(names, e.Key), append(keys, digest[:])
		}
	}
	known, err := w.known(ctx, keys)
	if err != nil {
		return err
	}
	lacked := 0
	for i, key := range keys {
		if _, ok := known[[16]byte(key)]; !ok {
			lacked++
			w.lacked = append(w.lacked, names[i])
		}
	}
	w.counts[Seen] += int64(len(keys))
	w.counts[Present] += int64(len(keys) - lacked)
	w.counts[Missing] += int64(lacked)
	return nil
}

// patience is how often a page is asked for again after trouble; the caller keeps within the budget, and waits where the provider wants to be left alone.
const patience = 6

// patiently makes a call again after trouble that may pass: a stretch has many pages, and all would be read again.
func (w *work) patiently(ctx context.Context, c provider.Call) (*Response, error) {
	for try := 1; ; try++ {
		a, err := w.call(ctx, c)
		var passing *passingError
		if try == patience || !errors.As(err, &passing) {
			return a, err
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return nil, errors.Join(err, passing)
		}
		runs.Pause(ctx, w.Settings.Again<<try)
	}
}
