package refetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The API answers a key of another account normally. A successful call therefore does not prove
// that the key belongs to the account whose webhooks arrive. The account check looks up samples:
// events and objects that webhooks have brought and the API must know.

const (
	// sampleScanLimit is how many events of the log are searched, over all sources. sampleReadLimit
	// is how many of the account are read, sampleBatch at a time, to find sampleEventLimit events
	// of the key's mode.
	sampleScanLimit, sampleReadLimit, sampleBatch, sampleEventLimit = 100_000, 500, 20, 5
	// sampleObjectLimit is how many objects are looked up at most. It also limits how many types
	// may reject the lookup.
	sampleObjectLimit = 10
)

// OtherAccountError: the API does not know the events that the account's webhooks have brought.
type OtherAccountError struct{ text string }

func (e *OtherAccountError) Error() string { return e.text }

// AccountUnverifiedError: the API finds none of the sampled objects of the mirror. They may be
// deleted, or invisible to the key.
type AccountUnverifiedError struct{ text string }

func (e *AccountUnverifiedError) Error() string { return e.text }

// CheckAccount checks that the key belongs to the account of the log and the mirror. The check
// succeeds if the API knows an event that a webhook has brought, or, without such an event, an
// object of the mirror other than exclude. If neither the log nor the mirror has a sample, verified
// is false without an error. A successful check is cached. Errors: *OtherAccountError,
// *AccountUnverifiedError.
func (f *Fetcher) CheckAccount(ctx context.Context, account string, exclude versioning.Key) (verified bool, err error) {
	if f.HasFixedAccount() {
		return true, nil
	}
	generation := f.accountChecks.currentGeneration()
	by, verified, err := f.findAccountSample(ctx, account, exclude)
	if verified {
		f.accountChecks.store(sourceKey{f.Source, account},
			accountCheck{time.Now().Add(f.Limits.AccountCheckTTL), by}, generation)
	}
	return verified, err
}

// findAccountSample looks for a sample that the API knows. It returns the object, nil if an event
// was found.
func (f *Fetcher) findAccountSample(ctx context.Context, account string,
	exclude versioning.Key) (sample *versioning.Key, verified bool, err error) {
	tenants, err := f.accountsListedTogether(ctx, account)
	if err != nil {
		return nil, false, err
	}
	otherMode := false
	switch f.Source.Reader.(type) {
	case provider.EventFetcher, provider.TimedLister:
		if verified, otherMode, err = f.checkEvents(ctx, account, tenants); verified || err != nil {
			return nil, verified, err
		}
	}
	sample, err = f.checkObjects(ctx, tenants, exclude)
	if !otherMode || sample != nil || err != nil && !errors.As(err, new(*AccountUnverifiedError)) {
		return sample, sample != nil, err
	}
	return nil, false, &OtherAccountError{fmt.Sprintf("recent webhooks of source %s brought only events of one mode "+
		"(test or live), the key reads the other mode, and the API finds no object of the mirror: give the source a "+
		"key of the mode of its webhooks (api.key), and ask again", f.Source.Name)}
}

// HasFixedAccount reports whether the API can only belong to this account, with any key.
func (f *Fetcher) HasFixedAccount() bool {
	_, ok := f.Source.Reader.(provider.AccountBoundReader)
	return ok
}

// accountsListedTogether returns the mirrored accounts whose events are in the same list as the
// account's, including itself.
func (f *Fetcher) accountsListedTogether(ctx context.Context, account string) ([]string, error) {
	all := []string{account}
	listAccount := func(string) string { return "" } // one list for all accounts
	switch lister := f.Source.Reader.(type) {
	case provider.EventLister:
		listAccount = func(other string) string {
			return f.WebhookAccount(lister.ListEvents(f.Source.API, other, time.Time{}, time.Time{}, "").Account)
		}
	case provider.TimedLister:
	default:
		return all, nil
	}
	mirrored, err := MirroredAccounts(ctx, f.Pool, f.Source.Number)
	if err != nil {
		return nil, err
	}
	for _, other := range append(mirrored, f.Source.Config.Account) {
		if !slices.Contains(all, other) && listAccount(other) == listAccount(account) {
			all = append(all, other)
		}
	}
	return all, nil
}

// sampleEventsSQL returns the newest events of some accounts that webhooks brought and that
// happened from $4 on and before $5. An event without a time of its own counts by its time of
// receipt. It searches a number of events below an id.
const sampleEventsSQL = `
SELECT e.id FROM (SELECT id, source, account, origin, coalesce(occurred_at, received_at) AS at FROM events WHERE id < $1
	ORDER BY id DESC LIMIT $6) e
WHERE e.source = $2 AND e.account = ANY($3::text[]) AND e.origin = 'webhook' AND e.at >= $4 AND e.at < $5
	ORDER BY e.id DESC LIMIT $7`

// sampleResult is what the API returned for events that webhooks brought.
type sampleResult struct {
	// requested is how many events were looked up, and firstUnknown is the first that the API does
	// not know. otherMode is how many events were of the mode that the key does not read.
	requested, otherMode int
	firstUnknown         *provider.StoredEvent
}

// describeOthers says how many more events are unknown.
func (t *sampleResult) describeOthers() string {
	switch t.requested {
	case 1:
		return ""
	case 2:
		return ", nor another one"
	}
	return fmt.Sprintf(", nor %d others", t.requested-1)
}

// checkEvents reports whether the API knows an event that a webhook brought. It looks up older
// events first. A recent event may not be listed yet, so the check does not fail if the API does
// not know it. otherMode: there were events of the mode that the key does not read. Errors:
// *OtherAccountError.
func (f *Fetcher) checkEvents(ctx context.Context, account string, tenants []string) (verified, otherMode bool,
	err error) {
	now, retention := f.Source.Caller.Now(), f.EventRetention()
	since := now.Add(min(f.Limits.Overlap, retention/2) - retention)
	for _, age := range []time.Duration{f.Limits.Overlap, f.Limits.ListDelay, 0} {
		result := sampleResult{}
		verified, err := f.requestSampleEvents(ctx, account, tenants, since, now.Add(-age), &result)
		if verified || err != nil {
			return verified, otherMode, err
		}
		if otherMode = otherMode || result.otherMode > 0; result.firstUnknown != nil && age > 0 {
			return false, otherMode, &OtherAccountError{fmt.Sprintf("the API of source %s does not know event %s, "+
				"which a webhook of the account brought at %s%s: its key is of another account, or of another mode "+
				"(test or live)%s. Give the source the key of the account whose webhooks it gets (api.key), and ask "+
				"again", f.Source.Name,
				result.firstUnknown.Key, result.firstUnknown.ReceivedAt.UTC().Format(time.RFC3339),
				result.describeOthers(), f.otherListAdvice())}
		}
	}
	return false, otherMode, nil
}

// otherListAdvice names another possible cause, if the configuration describes the list of events.
func (f *Fetcher) otherListAdvice() string {
	if _, ok := f.Source.Reader.(provider.TimedLister); ok {
		return ", or api.events is another list than that of the webhooks' events"
	}
	return ""
}

// requestSampleEvents looks up events that happened in an interval, the newest first, until the API
// knows one.
func (f *Fetcher) requestSampleEvents(ctx context.Context, account string, tenants []string, since, until time.Time,
	result *sampleResult) (verified bool, err error) {
	modes, _ := f.Source.Reader.(provider.ModeReader)
	for below, read := int64(1)<<62, 0; read < sampleReadLimit; read += sampleBatch {
		some, err := f.loadSampleEvents(ctx, below, tenants, since, until)
		if err != nil {
			return false, err
		}
		for i := range some {
			e := &some[i].StoredEvent
			below = min(below, e.ID)
			if modes != nil && modes.OtherMode(f.Source.API, e.Body) {
				result.otherMode++
				continue
			}
			found, conclusive, err := f.requestSampleEvent(ctx, account, e, since, until)
			if found || err != nil {
				return found, err
			}
			if conclusive {
				if result.requested++; result.firstUnknown == nil {
					result.firstUnknown = e
				}
			}
			if result.requested == sampleEventLimit {
				return false, nil
			}
		}
		if len(some) == 0 {
			return false, nil
		}
	}
	return false, nil
}

// requestSampleEvent looks up an event that a webhook brought, by its id or in the list at its
// time. conclusive: the response shows whether the API knows it.
func (f *Fetcher) requestSampleEvent(ctx context.Context, account string, e *provider.StoredEvent, since,
	until time.Time) (found, conclusive bool, err error) {
	switch r := f.Source.Reader.(type) {
	case provider.EventFetcher:
		if call, ok := r.FetchEvent(f.Source.API, account, e); ok {
			return classifyLookup(f.Call(ctx, call))
		}
	case provider.TimedLister:
		if at, ok := r.ListedAt(e); ok && !at.Before(since) && at.Before(until) {
			return f.findInTimedList(ctx, r, at, e.Key)
		}
	}
	return false, false, nil
}

// loadSampleEvents returns some events with their bodies, the newest first.
func (f *Fetcher) loadSampleEvents(ctx context.Context, below int64, tenants []string, since,
	until time.Time) ([]events.Record, error) {
	ids, err := postgres.Collect(ctx, f.Pool, pgx.RowTo[int64], sampleEventsSQL, below, f.Source.Number, tenants, since,
		until, sampleScanLimit, sampleBatch)
	if err != nil {
		return nil, fmt.Errorf("read events that webhooks brought: %w", err)
	}
	recs, err := events.Read(ctx, f.Pool, ids, events.UnlimitedBody)
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(b.ID, a.ID) })
	return recs, err
}

// classifyLookup returns whether a response has found something, and whether it is conclusive. A
// rejected lookup is not.
func classifyLookup(a *providerapi.Response, err error) (found, conclusive bool, _ error) {
	if errors.As(err, new(*RejectedError)) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	return a.Verdict.Kind == provider.Found, true, nil
}

// sampleObjectsSQL returns up to three living objects of each type in each account, out of a
// thousand. Objects whose newest event is not a refetch come first, the most recent of them first.
// It excludes one object, and the types $6.
const sampleObjectsSQL = `
WITH RECURSIVE t(account, object_type) AS (
  SELECT a.account, o.object_type FROM unnest($2::text[]) AS a(account)
  CROSS JOIN LATERAL (SELECT o.object_type FROM objects o WHERE o.source = $1 AND o.account = a.account
  	ORDER BY o.object_type LIMIT 1) o
  UNION ALL
  SELECT t.account, n.object_type FROM t
  CROSS JOIN LATERAL (SELECT o.object_type FROM objects o WHERE o.source = $1 AND o.account = t.account
  	AND o.object_type > t.object_type ORDER BY o.object_type LIMIT 1) n
)
SELECT t.account, t.object_type, s.object_id, s.from_webhook FROM t CROSS JOIN LATERAL (
  SELECT p.object_id, p.last_event_id, coalesce((SELECT e.origin <> 'reconcile' FROM events e
  	WHERE e.id = p.last_event_id), false) AS from_webhook FROM (
    SELECT o.object_id, o.last_event_id FROM objects o
    WHERE o.source = $1 AND o.account = t.account AND o.object_type = t.object_type AND NOT o.deleted
    	AND o.version_at > -9223372036854775808
      AND NOT (o.account = $3 AND o.object_type = $4 AND o.object_id = $5) LIMIT 1000) p
  ORDER BY from_webhook DESC, p.last_event_id DESC LIMIT 3) s
WHERE t.object_type <> ALL($6::text[]) ORDER BY s.from_webhook DESC, s.last_event_id DESC`

// SharedTypes returns the types of objects that the API may find with a key of any account.
func (f *Fetcher) SharedTypes() []string {
	if in, ok := f.Source.Reader.(provider.SharedTypeReader); ok {
		return in.SharedTypes()
	}
	return []string{}
}

// locateSample returns how to read an object that verifies the account if it is found. It returns
// false if the API cannot read it with this key.
func (f *Fetcher) locateSample(ctx context.Context, k versioning.Key) (at Location, ok bool, err error) {
	return f.Locate(ctx, k, nil)
}

// checkObjects looks up mirrored objects until the API knows one. It looks up objects that were
// only refetched if it could look up none that webhooks have brought. After a rejected lookup it
// skips the type. sample and err are nil if the mirror has no living object. Errors:
// *AccountUnverifiedError.
func (f *Fetcher) checkObjects(ctx context.Context, tenants []string, exclude versioning.Key) (sample *versioning.Key,
	err error) {
	all, err := f.loadSampleObjects(ctx, tenants, exclude)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var requested []versioning.Key
	rejected, webhookObjectsRequested := map[versioning.Key]bool{}, false
	for _, one := range all {
		typeKey := versioning.Key{Account: one.Account, Type: one.Type}
		if webhookObjectsRequested && !one.fromWebhook || len(requested)-len(rejected) == sampleObjectLimit ||
			len(rejected) == sampleObjectLimit {
			break
		}
		if rejected[typeKey] {
			continue
		}
		location, ok, err := f.locateSample(ctx, one.Key)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		found, conclusive, err := classifyLookup(f.FetchObject(ctx, one.Key, location.Call))
		if err != nil {
			return nil, err
		}
		if found {
			one.Source = f.Source.Number
			return &one.Key, nil
		}
		if !conclusive {
			rejected[typeKey] = true
		}
		webhookObjectsRequested = webhookObjectsRequested || one.fromWebhook
		requested = append(requested, one.Key)
	}
	return nil, f.unverifiedError(requested, len(rejected))
}

// unverifiedError returns the error that no sample object was found.
func (f *Fetcher) unverifiedError(requested []versioning.Key, rejected int) error {
	text := fmt.Sprintf("nothing shows that the key of source %s belongs to the account (and mode) of the mirror: ",
		f.Source.Name)
	switch {
	case len(requested) == 0:
		return &AccountUnverifiedError{text + "the API reads none of the mirror's object types with this key"}
	case rejected == 0:
		return &AccountUnverifiedError{fmt.Sprintf("%sthe API knows none of the %d objects that were looked up (the "+
			"first is %s %s)", text, len(requested), requested[0].Type, requested[0].ID)}
	}
	return &AccountUnverifiedError{fmt.Sprintf("%sthe API knows none of the %d objects that were looked up (the first "+
		"is %s %s), and rejects %d of them", text, len(requested), requested[0].Type, requested[0].ID, rejected)}
}

// sampleObject is a living object of the mirror.
type sampleObject struct {
	versioning.Key
	// fromWebhook: its newest event is not a refetch.
	fromWebhook bool
}

// loadSampleObjects returns the objects to look up, in their order.
func (f *Fetcher) loadSampleObjects(ctx context.Context, tenants []string, exclude versioning.Key) ([]sampleObject,
	error) {
	all, err := postgres.Collect(ctx, f.Pool, func(row pgx.CollectableRow) (w sampleObject, err error) {
		return w, row.Scan(&w.Account, &w.Type, &w.ID, &w.fromWebhook)
	}, sampleObjectsSQL, f.Source.Number, tenants, exclude.Account, exclude.Type, exclude.ID, f.SharedTypes())
	if err != nil {
		return nil, fmt.Errorf("read sample objects for the account check: %w", err)
	}
	return all, nil
}

// mirroredAccountsSQL returns the distinct accounts of a source. It steps from account to account
// over the primary key, so its cost does not depend on the number of objects.
const mirroredAccountsSQL = `
WITH RECURSIVE a AS (
  (SELECT account FROM objects WHERE source = $1 ORDER BY account LIMIT 1)
  UNION ALL
  SELECT (SELECT o.account FROM objects o WHERE o.source = $1 AND o.account > a.account ORDER BY o.account LIMIT 1)
  	FROM a WHERE a.account IS NOT NULL
)
SELECT account FROM a WHERE account IS NOT NULL`

// MirroredAccounts returns the accounts of a source's mirrored objects.
func MirroredAccounts(ctx context.Context, pool *pgxpool.Pool, source int32) ([]string, error) {
	all, err := postgres.Collect(ctx, pool, pgx.RowTo[string], mirroredAccountsSQL, source)
	if err != nil {
		return nil, fmt.Errorf("list mirrored accounts: %w", err)
	}
	return all, nil
}

// EventRetention returns for how long the provider keeps its events.
func (f *Fetcher) EventRetention() time.Duration {
	if sent, ok := f.Source.Reader.(provider.DeliveryLister); ok {
		return min(sent.DeliveryRetention(), f.Limits.EventRetention)
	}
	if timed, ok := f.Source.Reader.(provider.TimedLister); ok {
		return min(timed.EventRetention(), f.Limits.EventRetention)
	}
	return f.Limits.EventRetention
}

// maxSamplePages is how many pages are read for one event.
const maxSamplePages = 10

// findInTimedList reports whether the list of events has an event at a time. conclusive: the list
// was read up to its end there, or up to the event.
func (f *Fetcher) findInTimedList(ctx context.Context, lister provider.TimedLister, at time.Time, key string) (found,
	conclusive bool, err error) {
	cursor := ""
	for range maxSamplePages {
		a, err := f.Call(ctx, lister.ListTimed(f.Source.API, at, at, cursor))
		if found, _, err := classifyLookup(a, err); !found {
			return false, false, err
		}
		page, next, err := lister.TimedPage(f.Source.Config, f.Source.API, at, at, cursor, a.Header, a.Body)
		if err != nil {
			return false, false, fmt.Errorf("source %s: %w", f.Source.Name, f.MaskError(err))
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
