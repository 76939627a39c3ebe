package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
)

// Counts of a run over deliveries, in addition to the general ones.
const (
	// Undelivered are events whose last delivery attempt failed according to the provider. If the
	// provider reports all its endpoints together (EventLister), only missing events count.
	Undelivered = "undelivered"
	// UnreadEvents are events that the log lacks and whose body the API did not return.
	UnreadEvents = "unread"
	// Redelivered are those of them for which a redelivery was requested.
	Redelivered = "redelivered"
)

// deliveryRun is a run over the deliveries of a source's webhooks.
type deliveryRun struct {
	*execution
	lister       provider.DeliveryLister
	since, until time.Time
	// seenKeys are the digests of the keys seen so far, so that an event that was sent three times
	// counts once. It takes 16 bytes for each event of a few days.
	seenKeys map[[16]byte]bool
	// firstUnread is the reason why the first unread event could not be read.
	firstUnread error
}

// sentEvent is an event with its delivery attempts on one page, the newest first.
type sentEvent struct {
	key      string
	attempts []provider.SentDelivery
	digest   [16]byte
}

// reconcileDeliveries appends the events that the provider has sent and the log lacks. Lists of
// deliveries begin with the newest and cannot be requested by time. Each webhook's list is
// therefore read back to the run's start, and the checkpoint moves once all are read. A killed run
// lists everything again, and does not fetch what the log has by then.
func (w *execution) reconcileDeliveries(ctx context.Context, lister provider.DeliveryLister) (runs.Status, error) {
	if len(w.Source.API.Webhooks) == 0 {
		return "", runs.Permanent(fmt.Errorf("source %s names no webhook whose deliveries can be read: name it under "+
			"api.hooks", w.Source.Name))
	}
	if w.params.Account != "" {
		return "", runs.Permanent(fmt.Errorf("the deliveries of the webhooks of source %s are read for all accounts "+
			"at once: ask without an account", w.Source.Name))
	}
	if _, err := w.CheckKey(ctx, w.params.Account); err != nil { // the response also has the provider's time
		return "", err
	}
	if err := w.freezeBounds(ctx); err != nil {
		return "", err
	}
	if w.lease.Cursor >= w.lease.Bound {
		return runs.Running, nil
	}
	s := &deliveryRun{execution: w, lister: lister, since: time.UnixMicro(w.lease.Cursor).UTC(),
		until: time.UnixMicro(w.lease.Bound).UTC(), seenKeys: map[[16]byte]bool{}}
	for _, hook := range w.Source.API.Webhooks {
		if status, err := s.readHook(ctx, hook); err != nil || status != runs.Running {
			return status, err
		}
	}
	if n := w.pendingCounts[UnreadEvents]; n > 0 { // the counts stay with the run, and the watermark does not move
		if status, err := w.advanceCheckpoint(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, err
		}
		return "", runs.Permanent(fmt.Errorf("the log lacks %d events that the provider of source %s has sent, and "+
			"the API did not return their bodies; the first because: %w", n, w.Source.Name, s.firstUnread))
	}
	if err := w.raiseWatermark(ctx, s.until); err != nil {
		return "", err
	}
	return w.advanceCheckpoint(ctx, s.until.UnixMicro())
}

// readHook reads the deliveries of one webhook, back to a page that is older than the run's
// interval as a whole. Deliveries of the same moment may be listed in any order.
func (s *deliveryRun) readHook(ctx context.Context, hook string) (runs.Status, error) {
	for cursor := ""; ; {
		a, err := s.callWithRetry(ctx, s.lister.ListDeliveries(s.Source.API, hook, cursor))
		if err != nil {
			return "", err
		}
		if a.Verdict.Kind == provider.Missing {
			return "", runs.Permanent(fmt.Errorf("the API of source %s finds no webhook %s, or the key may "+
				"not read it: see api.hooks", s.Source.Name, hook))
		}
		page, next, err := s.lister.DeliveryPage(a.Header, a.Body)
		if err != nil {
			return "", fmt.Errorf("source %s: %w", s.Source.Name, s.MaskError(err))
		}
		if status, err := s.appendPage(ctx, hook, page); err != nil || status != runs.Running {
			return status, err
		}
		older := func(one provider.SentDelivery) bool { return one.SentAt.Before(s.since) }
		switch {
		case next == "", len(page) > 0 &&
			!slices.ContainsFunc(page, func(one provider.SentDelivery) bool { return !older(one) }):
			return runs.Running, nil
		case next == cursor:
			return "", fmt.Errorf("the API of source %s gives the same page again and again", s.Source.Name)
		}
		cursor = next
	}
}

// appendPage appends the events of a page that the log lacks, and waits for the outcomes of the
// whole page.
func (s *deliveryRun) appendPage(ctx context.Context, hook string, page []provider.SentDelivery) (runs.Status, error) {
	evs := s.collectNew(page)
	stored, err := s.storedIDs(ctx, evs)
	if err != nil {
		return "", err
	}
	lacking := slices.DeleteFunc(slices.Clone(evs), func(e *sentEvent) bool { return stored[e.digest] != 0 })
	if s.params.DryRun {
		s.pendingCounts[Processed] += int64(len(evs))
		s.pendingCounts[Missing] += int64(len(lacking))
		s.pendingCounts[Present] += int64(len(evs) - len(lacking))
		return runs.Running, nil
	}
	ids, err := s.countStored(ctx, stored)
	if err != nil {
		return "", err
	}
	ds, err := s.fetchDeliveries(ctx, hook, lacking)
	if err != nil {
		return "", err
	}
	appended, err := s.appendDeliveries(ctx, ds)
	if err != nil {
		return "", err
	}
	return s.waitForOutcomes(ctx, append(ids, appended...))
}

// collectNew returns the events that a page shows for the first time and that were sent in the
// run's interval, the oldest first.
func (s *deliveryRun) collectNew(page []provider.SentDelivery) (evs []*sentEvent) {
	byKey := map[string]*sentEvent{}
	for _, single := range page {
		if single.SentAt.Before(s.since) || single.SentAt.After(s.until) {
			continue
		}
		if e := byKey[single.Key]; e != nil {
			e.attempts = append(e.attempts, single)
			continue
		}
		e := &sentEvent{key: single.Key, attempts: []provider.SentDelivery{single},
			digest: events.KeyDigest(single.Key)}
		if s.seenKeys[e.digest] {
			continue
		}
		s.seenKeys[e.digest], byKey[single.Key] = true, e
		evs = append(evs, e)
		if single.Failed {
			s.pendingCounts[Undelivered]++
		}
	}
	slices.Reverse(evs)
	return evs
}

const storedSQL = `
SELECT d.key, k.id FROM unnest($2::bytea[]) AS d(key) CROSS JOIN LATERAL (SELECT k.id FROM event_keys k
	WHERE k.source = $1 AND k.key = d.key LIMIT 1) k`

// storedIDs returns the ids of the events that the log has, by the digests of their keys.
func (s *deliveryRun) storedIDs(ctx context.Context, evs []*sentEvent) (map[[16]byte]int64, error) {
	keys := make([][]byte, 0, len(evs))
	for _, e := range evs {
		keys = append(keys, e.digest[:])
	}
	return s.storedEvents(ctx, keys)
}

// storedEvents returns the ids of the events that the log has, by the digests of their keys.
func (w *execution) storedEvents(ctx context.Context, keys [][]byte) (map[[16]byte]int64, error) {
	stored := map[[16]byte]int64{}
	var key []byte
	var id int64
	if err := postgres.ForEach(ctx, w.Pool, storedSQL, []any{w.params.Source, keys}, []any{&key, &id},
		func() error { stored[[16]byte(key)] = id; return nil }); err != nil {
		return nil, fmt.Errorf("look for %d keys: %w", len(keys), err)
	}
	return stored, nil
}

// countStored counts the events that are in the log, and returns their ids. Events that this run
// appended before it was killed count as missing.
func (s *deliveryRun) countStored(ctx context.Context, stored map[[16]byte]int64) (ids []int64, err error) {
	for _, id := range stored {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	appended, err := s.appendedByRun(ctx, ids)
	s.pendingCounts[Processed] += int64(len(ids))
	s.pendingCounts[Missing] += int64(len(appended))
	s.pendingCounts[Present] += int64(len(ids) - len(appended))
	return ids, err
}

// fetchDeliveries reads the bodies of some events and returns them as deliveries to append.
func (s *deliveryRun) fetchDeliveries(ctx context.Context, hook string, lacking []*sentEvent) (ds []events.Delivery,
	err error) {
	for _, e := range lacking {
		d, err := s.fetchDelivery(ctx, hook, e)
		var unread *unreadError
		if errors.As(err, &unread) {
			s.pendingCounts[Processed]++
			s.pendingCounts[UnreadEvents]++
			if s.firstUnread == nil {
				s.firstUnread = err
			}
			err = s.requestRedelivery(ctx, hook, e)
		}
		if err != nil {
			return nil, err
		}
		if d != nil {
			ds = append(ds, *d)
		}
	}
	return ds, nil
}

// unreadError: the API does not return the body of one event, and works otherwise.
type unreadError struct{ text string }

func (e *unreadError) Error() string { return e.text }

// fetchDelivery reads an event's body from the first attempt that the API returns. It returns nil
// without an error if the source does not accept the event's account.
func (s *deliveryRun) fetchDelivery(ctx context.Context, hook string, e *sentEvent) (*events.Delivery, error) {
	var last error
	for _, one := range e.attempts {
		a, err := s.callWithRetry(ctx, s.lister.FetchDelivery(s.Source.API, hook, one.ID))
		var temporary *providerapi.TemporaryError
		if errors.As(err, &temporary) {
			// the API responds, but not for this event: its response may be too large
			if _, down := s.CheckKey(ctx, s.params.Account); down == nil {
				last = &unreadError{temporary.Error()}
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if a.Verdict.Kind == provider.Missing {
			last = &unreadError{fmt.Sprintf("delivery %s: %s", one.ID, a.Verdict.Detail)}
			continue
		}
		d, err := s.lister.ReadDelivery(a.Body)
		if err != nil {
			last = &unreadError{fmt.Sprintf("delivery %s: %v", one.ID, s.MaskError(err))}
			continue
		}
		return s.toDelivery(e, d)
	}
	return nil, last
}

// toDelivery converts a fetched delivery to one that can be appended.
func (s *deliveryRun) toDelivery(e *sentEvent, d *provider.Delivery) (*events.Delivery, error) {
	d.ReceivedAt = s.ReceiptTime()
	identified, err := s.Source.Provider.Identify(s.Source.Config, d)
	if err != nil {
		s.pendingCounts[Processed]++
		s.pendingCounts[Rejected]++ // of an account that the source does not accept
		return nil, nil
	}
	if !slices.ContainsFunc(identified, func(n provider.Event) bool { return n.Key == e.key }) {
		return nil, &unreadError{fmt.Sprintf("the API returned another event for %s", s.Source.API.Quote(e.key, 100))}
	}
	return &events.Delivery{Source: s.params.Source, ReceivedAt: d.ReceivedAt, Origin: events.OriginReconcile,
		Headers:      events.AppendHeaders(nil, s.Source.Provider.Headers(), d),
		Verification: s.Verification, Body: d.Body, Events: identified}, nil
}

// requestRedelivery requests another delivery of an event if the configuration allows it. The event
// then arrives by the webhook, and a later run finds it in the log.
func (s *deliveryRun) requestRedelivery(ctx context.Context, hook string, e *sentEvent) error {
	if !s.Source.API.Redeliver {
		return nil
	}
	a, err := s.Call(ctx, s.lister.Redeliver(s.Source.API, hook, e.attempts[0].ID))
	if temporary := (*providerapi.TemporaryError)(nil); errors.As(err, &temporary) {
		return nil // the next run requests it again
	}
	if err == nil && a.Verdict.Kind == provider.Found {
		s.pendingCounts[Redelivered]++
	}
	return err
}
