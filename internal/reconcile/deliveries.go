package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// Counts of a run over deliveries, besides the others.
const (
	// Undelivered are events of which the provider's last attempt failed, as far as the provider knows. Where it speaks of all its endpoints together (EventLister), they are
	// those of the missing alone.
	Undelivered = "undelivered"
	// Unread are events that the log lacks and whose body the API did not give.
	Unread = "unread"
	// Redelivered are those of them that the provider was asked to send again.
	Redelivered = "redelivered"
)

// sending is a run over what a source's webhooks were sent.
type sending struct {
	*work
	lister       provider.DeliveryLister
	since, until time.Time
	// told are the digests of the keys met so far: an event that was sent three times counts once. 16 bytes for each event of a few days.
	told map[[16]byte]bool
	// unread says why the first of the events could not be read that could not.
	unread error
}

// sentEvent is an event and the attempts to send it that a page tells of, the newest first.
type sentEvent struct {
	key      string
	attempts []provider.Sent
	digest   [16]byte
}

// deliveries appends what the provider says it has sent and the log lacks. Lists of deliveries begin with the newest and cannot be asked for by time, so each webhook's is read
// back to where the run begins, in one stretch, and the checkpoint moves when all were: killed before, all is listed again, and what is in the log by then is not fetched again.
func (w *work) deliveries(ctx context.Context, lister provider.DeliveryLister) (runs.Status, error) {
	if len(w.source.API.Hooks) == 0 {
		return "", runs.Refuse(fmt.Errorf("source %s names no webhook whose deliveries to read: name it under api.hooks", w.source.Name))
	}
	if w.order.Account != "" {
		return "", runs.Refuse(fmt.Errorf("what the webhooks of source %s were sent is read for all accounts at once: ask without one", w.source.Name))
	}
	if _, err := w.control(ctx, w.order.Account); err != nil { // which also tells the provider's time
		return "", err
	}
	if err := w.begin(ctx); err != nil {
		return "", err
	}
	if w.hold.Cursor >= w.hold.Bound {
		return runs.Running, nil
	}
	s := &sending{work: w, lister: lister, since: time.UnixMicro(w.hold.Cursor).UTC(), until: time.UnixMicro(w.hold.Bound).UTC(), told: map[[16]byte]bool{}}
	for _, hook := range w.source.API.Hooks {
		if status, err := s.hook(ctx, hook); err != nil || status != runs.Running {
			return status, err
		}
	}
	if n := w.counts[Unread]; n > 0 { // the counts are the run's, and nothing is proven
		if status, err := w.advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return status, err
		}
		return "", runs.Refuse(fmt.Errorf("of %d events that the provider of source %s has sent, the log lacks the body and the API did not give it, the first because: %w", n, w.source.Name, s.unread))
	}
	if err := w.proven(ctx, s.until); err != nil {
		return "", err
	}
	return w.advance(ctx, s.until.UnixMicro())
}

// kept is how far back the provider knows.
func (f *fetcher) kept() time.Duration {
	if sent, ok := f.source.Reader.(provider.DeliveryLister); ok {
		return min(sent.DeliveriesKept(), f.Settings.Kept)
	}
	if timed, ok := f.source.Reader.(provider.TimedLister); ok {
		return min(timed.EventsKept(), f.Settings.Kept)
	}
	return f.Settings.Kept
}

// hook reads what one webhook was sent, back to a page that is older than the run's time as a whole: what was sent at once may be listed in any order.
func (s *sending) hook(ctx context.Context, hook string) (runs.Status, error) {
	for cursor := ""; ; {
		a, err := s.patiently(ctx, s.lister.ListDeliveries(s.source.API, hook, cursor))
		if err != nil {
			return "", err
		}
		if a.Verdict.Kind == provider.Missing {
			return "", runs.Refuse(fmt.Errorf("the API of source %s says that there is no webhook %s, or the key may not read it: see api.hooks", s.source.Name, hook))
		}
		page, next, err := s.lister.DeliveryPage(a.Header, a.Body)
		if err != nil {
			return "", fmt.Errorf("source %s: %w", s.source.Name, s.hide(err))
		}
		if status, err := s.page(ctx, hook, page); err != nil || status != runs.Running {
			return status, err
		}
		older := func(one provider.Sent) bool { return one.At.Before(s.since) }
		switch {
		case next == "", len(page) > 0 && !slices.ContainsFunc(page, func(one provider.Sent) bool { return !older(one) }):
			return runs.Running, nil
		case next == cursor:
			return "", fmt.Errorf("the API of source %s gives the same page again and again", s.source.Name)
		}
		cursor = next
	}
}

// page appends the events of a page that the log lacks, and waits until all of it have their outcomes.
func (s *sending) page(ctx context.Context, hook string, page []provider.Sent) (runs.Status, error) {
	evs := s.gather(page)
	known, err := s.stored(ctx, evs)
	if err != nil {
		return "", err
	}
	lacking := slices.DeleteFunc(slices.Clone(evs), func(e *sentEvent) bool { return known[e.digest] != 0 })
	if s.order.DryRun {
		s.counts[Seen] += int64(len(evs))
		s.counts[Missing] += int64(len(lacking))
		s.counts[Present] += int64(len(evs) - len(lacking))
		return runs.Running, nil
	}
	ids, err := s.countKnown(ctx, known)
	if err != nil {
		return "", err
	}
	ds, err := s.fetch(ctx, hook, lacking)
	if err != nil {
		return "", err
	}
	fresh, err := s.append(ctx, ds)
	if err != nil {
		return "", err
	}
	return s.settled(ctx, append(ids, fresh...))
}

// gather are the events that a page tells of for the first time, and that were sent in the run's time; the oldest first.
func (s *sending) gather(page []provider.Sent) (evs []*sentEvent) {
	byKey := map[string]*sentEvent{}
	for _, one := range page {
		if one.At.Before(s.since) || one.At.After(s.until) {
			continue
		}
		if e := byKey[one.Key]; e != nil {
			e.attempts = append(e.attempts, one)
			continue
		}
		e := &sentEvent{key: one.Key, attempts: []provider.Sent{one}, digest: events.KeyDigest(one.Key)}
		if s.told[e.digest] {
			continue
		}
		s.told[e.digest], byKey[one.Key] = true, e
		evs = append(evs, e)
		if one.Failed {
			s.counts[Undelivered]++
		}
	}
	slices.Reverse(evs)
	return evs
}

const storedSQL = `
SELECT d.key, k.id FROM unnest($2::bytea[]) AS d(key) CROSS JOIN LATERAL (SELECT k.id FROM event_keys k WHERE k.source = $1 AND k.key = d.key LIMIT 1) k`

// stored are the ids of the events that the log has, by the digests of their keys.
func (s *sending) stored(ctx context.Context, evs []*sentEvent) (map[[16]byte]int64, error) {
	keys := make([][]byte, 0, len(evs))
	for _, e := range evs {
		keys = append(keys, e.digest[:])
	}
	return s.known(ctx, keys)
}

// known are the ids of the events that the log has, by the digests of their keys.
func (w *work) known(ctx context.Context, keys [][]byte) (map[[16]byte]int64, error) {
	known := map[[16]byte]int64{}
	rows, err := w.Pool.Query(ctx, storedSQL, w.order.Source, keys)
	if err == nil {
		var key []byte
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error { known[[16]byte(key)] = id; return nil })
	}
	if err != nil {
		return nil, fmt.Errorf("look for %d keys: %w", len(keys), err)
	}
	return known, nil
}

// countKnown counts what is in the log, and returns the ids. What this run has appended before it was killed was missing.
func (s *sending) countKnown(ctx context.Context, known map[[16]byte]int64) (ids []int64, err error) {
	for _, id := range known {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	mine, err := s.mine(ctx, ids)
	s.counts[Seen] += int64(len(ids))
	s.counts[Missing] += int64(len(mine))
	s.counts[Present] += int64(len(ids) - len(mine))
	return ids, err
}

// fetch reads what some events carried, as it is appended.
func (s *sending) fetch(ctx context.Context, hook string, lacking []*sentEvent) (ds []events.Delivery, err error) {
	for _, e := range lacking {
		d, err := s.body(ctx, hook, e)
		var unread *unreadError
		if errors.As(err, &unread) {
			s.counts[Seen]++
			s.counts[Unread]++
			if s.unread == nil {
				s.unread = err
			}
			err = s.again(ctx, hook, e)
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

// unreadError: the API does not give what one event carried, and is well otherwise.
type unreadError struct{ text string }

func (e *unreadError) Error() string { return e.text }

// body reads what an event carried from whichever attempt the API gives. Nil without an error: the source takes it from nobody.
func (s *sending) body(ctx context.Context, hook string, e *sentEvent) (*events.Delivery, error) {
	var last error
	for _, one := range e.attempts {
		a, err := s.patiently(ctx, s.lister.FetchDelivery(s.source.API, hook, one.ID))
		var passing *passingError
		if errors.As(err, &passing) {
			if _, down := s.control(ctx, s.order.Account); down == nil { // the API answers, but not for this one: an answer too large, for example
				last = &unreadError{passing.Error()}
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
			last = &unreadError{fmt.Sprintf("delivery %s: %v", one.ID, s.hide(err))}
			continue
		}
		return s.delivery(e, d)
	}
	return nil, last
}

// delivery is what was read as it is appended.
func (s *sending) delivery(e *sentEvent, d *provider.Delivery) (*events.Delivery, error) {
	d.ReceivedAt = s.received()
	named, err := s.source.Provider.Identify(s.source.Config, d)
	if err != nil {
		s.counts[Seen]++
		s.counts[Refused]++ // of an account that the source does not take
		return nil, nil
	}
	if !slices.ContainsFunc(named, func(n provider.Event) bool { return n.Key == e.key }) {
		return nil, &unreadError{fmt.Sprintf("the API answered another event for %s", s.source.API.Quote(e.key, 100))}
	}
	return &events.Delivery{Source: s.order.Source, ReceivedAt: d.ReceivedAt, Origin: events.OriginReconcile, Headers: events.AppendHeaders(nil, s.source.Provider.Headers(), d),
		Verification: s.proof, Body: d.Body, Events: named}, nil
}

// again asks the provider to send an event again, where the source says so: what comes of it comes by the webhook, and a later run sees it in the log.
func (s *sending) again(ctx context.Context, hook string, e *sentEvent) error {
	if !s.source.API.Redeliver {
		return nil
	}
	a, err := s.call(ctx, s.lister.Redeliver(s.source.API, hook, e.attempts[0].ID))
	if passing := (*passingError)(nil); errors.As(err, &passing) {
		return nil // the next run asks again
	}
	if err == nil && a.Verdict.Kind == provider.Found {
		s.counts[Redelivered]++
	}
	return err
}
