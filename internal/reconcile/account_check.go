package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
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

// otherAccountError: the API does not know the events that the account's webhooks have brought.
type otherAccountError struct{ text string }

func (e *otherAccountError) Error() string { return e.text }

// accountUnverifiedError: the API finds none of the sampled objects of the mirror. They may be
// deleted, or invisible to the key.
type accountUnverifiedError struct{ text string }

func (e *accountUnverifiedError) Error() string { return e.text }

// checkAccount checks that the key belongs to the account of the log and the mirror. The check
// succeeds if the API knows an event that a webhook has brought, or, without such an event, an
// object of the mirror other than exclude. If neither the log nor the mirror has a sample, verified
// is false without an error. A successful check is cached. Errors: *otherAccountError,
// *accountUnverifiedError.
func (f *fetcher) checkAccount(ctx context.Context, account string, exclude versioning.Key) (verified bool, err error) {
	if f.hasFixedAccount() {
		return true, nil
	}
	generation := f.accountChecks.currentGeneration()
	by, verified, err := f.findAccountSample(ctx, account, exclude)
	if verified {
		f.accountChecks.store(sourceKey{f.source, account},
			accountCheck{time.Now().Add(f.Settings.AccountCheckTTL), by}, generation)
	}
	return verified, err
}

// findAccountSample looks for a sample that the API knows. It returns the object, nil if an event
// was found.
func (f *fetcher) findAccountSample(ctx context.Context, account string,
	exclude versioning.Key) (sample *versioning.Key, verified bool, err error) {
	tenants, err := f.accountsListedTogether(ctx, account)
	if err != nil {
		return nil, false, err
	}
	otherMode := false
	switch f.source.Reader.(type) {
	case provider.EventFetcher, provider.TimedLister:
		if verified, otherMode, err = f.checkEvents(ctx, account, tenants); verified || err != nil {
			return nil, verified, err
		}
	}
	sample, err = f.checkObjects(ctx, tenants, exclude)
	if !otherMode || sample != nil || err != nil && !errors.As(err, new(*accountUnverifiedError)) {
		return sample, sample != nil, err
	}
	return nil, false, &otherAccountError{fmt.Sprintf("recent webhooks of source %s brought only events of one mode "+
		"(test or live), the key reads the other mode, and the API finds no object of the mirror: give the source a "+
		"key of the mode of its webhooks (api.key), and ask again", f.source.Name)}
}

// hasFixedAccount reports whether the API can only belong to this account, with any key.
func (f *fetcher) hasFixedAccount() bool {
	_, ok := f.source.Reader.(provider.AccountBoundReader)
	return ok
}

// accountsListedTogether returns the mirrored accounts whose events are in the same list as the
// account's, including itself.
func (f *fetcher) accountsListedTogether(ctx context.Context, account string) ([]string, error) {
	all := []string{account}
	listAccount := func(string) string { return "" } // one list for all accounts
	switch lister := f.source.Reader.(type) {
	case provider.EventLister:
		listAccount = func(other string) string {
			return f.webhookAccount(lister.ListEvents(f.source.API, other, time.Time{}, time.Time{}, "").Account)
		}
	case provider.TimedLister:
	default:
		return all, nil
	}
	mirrored, err := queryAccounts(ctx, f.Pool, mirroredAccountsSQL, f.source.Number)
	if err != nil {
		return nil, err
	}
	for _, other := range append(mirrored, f.source.Config.Account) {
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
// *otherAccountError.
func (f *fetcher) checkEvents(ctx context.Context, account string, tenants []string) (verified, otherMode bool,
	err error) {
	now, retention := f.source.Caller.Now(), f.eventRetention()
	since := now.Add(min(f.Settings.Overlap, retention/2) - retention)
	for _, age := range []time.Duration{f.Settings.Overlap, f.Settings.ListDelay, 0} {
		result := sampleResult{}
		verified, err := f.requestSampleEvents(ctx, account, tenants, since, now.Add(-age), &result)
		if verified || err != nil {
			return verified, otherMode, err
		}
		if otherMode = otherMode || result.otherMode > 0; result.firstUnknown != nil && age > 0 {
			return false, otherMode, &otherAccountError{fmt.Sprintf("the API of source %s does not know event %s, "+
				"which a webhook of the account brought at %s%s: its key is of another account, or of another mode "+
				"(test or live)%s. Give the source the key of the account whose webhooks it gets (api.key), and ask "+
				"again", f.source.Name,
				result.firstUnknown.Key, result.firstUnknown.ReceivedAt.UTC().Format(time.RFC3339),
				result.describeOthers(), f.otherListAdvice())}
		}
	}
	return false, otherMode, nil
}

// otherListAdvice names another possible cause, if the configuration describes the list of events.
func (f *fetcher) otherListAdvice() string {
	if _, ok := f.source.Reader.(provider.TimedLister); ok {
		return ", or api.events is another list than that of the webhooks' events"
	}
	return ""
}

// requestSampleEvents looks up events that happened in an interval, the newest first, until the API
// knows one.
func (f *fetcher) requestSampleEvents(ctx context.Context, account string, tenants []string, since, until time.Time,
	result *sampleResult) (verified bool, err error) {
	modes, _ := f.source.Reader.(provider.ModeReader)
	for below, read := int64(1)<<62, 0; read < sampleReadLimit; read += sampleBatch {
		some, err := f.loadSampleEvents(ctx, below, tenants, since, until)
		if err != nil {
			return false, err
		}
		for i := range some {
			e := &some[i].StoredEvent
			below = min(below, e.ID)
			if modes != nil && modes.OtherMode(f.source.API, e.Body) {
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
func (f *fetcher) requestSampleEvent(ctx context.Context, account string, e *provider.StoredEvent, since,
	until time.Time) (found, conclusive bool, err error) {
	switch r := f.source.Reader.(type) {
	case provider.EventFetcher:
		if call, ok := r.FetchEvent(f.source.API, account, e); ok {
			return classifyLookup(f.call(ctx, call))
		}
	case provider.TimedLister:
		if at, ok := r.ListedAt(e); ok && !at.Before(since) && at.Before(until) {
			return f.findInTimedList(ctx, r, at, e.Key)
		}
	}
	return false, false, nil
}

// loadSampleEvents returns some events with their bodies, the newest first.
func (f *fetcher) loadSampleEvents(ctx context.Context, below int64, tenants []string, since,
	until time.Time) ([]events.Record, error) {
	rows, err := f.Pool.Query(ctx, sampleEventsSQL, below, f.source.Number, tenants, since, until, sampleScanLimit,
		sampleBatch)
	var ids []int64
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
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
	if errors.As(err, new(*rejectedError)) {
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
SELECT t.account, t.object_type, s.object_id, s.told FROM t CROSS JOIN LATERAL (
  SELECT p.object_id, p.last_event_id, coalesce((SELECT e.origin <> 'reconcile' FROM events e
  	WHERE e.id = p.last_event_id), false) AS told FROM (
    SELECT o.object_id, o.last_event_id FROM objects o
    WHERE o.source = $1 AND o.account = t.account AND o.object_type = t.object_type AND NOT o.deleted
    	AND o.version_at > -9223372036854775808
      AND NOT (o.account = $3 AND o.object_type = $4 AND o.object_id = $5) LIMIT 1000) p
  ORDER BY told DESC, p.last_event_id DESC LIMIT 3) s
WHERE t.object_type <> ALL($6::text[]) ORDER BY s.told DESC, s.last_event_id DESC`

// sharedTypes returns the types of objects that the API may find with a key of any account.
func (f *fetcher) sharedTypes() []string {
	if in, ok := f.source.Reader.(provider.SharedTypeReader); ok {
		return in.SharedTypes()
	}
	return []string{}
}

// locateSample returns how to read an object that verifies the account if it is found. It returns
// false if the API cannot read it with this key.
func (f *fetcher) locateSample(ctx context.Context, k versioning.Key) (at location, ok bool, err error) {
	return f.locate(ctx, k, nil)
}

// checkObjects looks up mirrored objects until the API knows one. It looks up objects that were
// only refetched if it could look up none that webhooks have brought. After a rejected lookup it
// skips the type. sample and err are nil if the mirror has no living object. Errors:
// *accountUnverifiedError.
func (f *fetcher) checkObjects(ctx context.Context, tenants []string, exclude versioning.Key) (sample *versioning.Key,
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
		found, conclusive, err := classifyLookup(f.fetchObject(ctx, one.Key, location.call))
		if err != nil {
			return nil, err
		}
		if found {
			one.Source = f.source.Number
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
func (f *fetcher) unverifiedError(requested []versioning.Key, rejected int) error {
	text := fmt.Sprintf("nothing shows that the key of source %s belongs to the account (and mode) of the mirror: ",
		f.source.Name)
	switch {
	case len(requested) == 0:
		return &accountUnverifiedError{text + "the API reads none of the mirror's object types with this key"}
	case rejected == 0:
		return &accountUnverifiedError{fmt.Sprintf("%sthe API knows none of the %d objects that were looked up (the "+
			"first is %s %s)", text, len(requested), requested[0].Type, requested[0].ID)}
	}
	return &accountUnverifiedError{fmt.Sprintf("%sthe API knows none of the %d objects that were looked up (the first "+
		"is %s %s), and rejects %d of them", text, len(requested), requested[0].Type, requested[0].ID, rejected)}
}

// sampleObject is a living object of the mirror.
type sampleObject struct {
	versioning.Key
	// fromWebhook: its newest event is not a refetch.
	fromWebhook bool
}

// loadSampleObjects returns the objects to look up, in their order.
func (f *fetcher) loadSampleObjects(ctx context.Context, tenants []string, exclude versioning.Key) ([]sampleObject,
	error) {
	rows, err := f.Pool.Query(ctx, sampleObjectsSQL, f.source.Number, tenants, exclude.Account, exclude.Type,
		exclude.ID, f.sharedTypes())
	var all []sampleObject
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w sampleObject, err error) {
			return w, row.Scan(&w.Account, &w.Type, &w.ID, &w.fromWebhook)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read sample objects for the account check: %w", err)
	}
	return all, nil
}

// checkAccountFor checks the account after a refetch has found nothing. If an operator named the
// object, a check without a result is no error.
func (f *fetcher) checkAccountFor(ctx context.Context, k versioning.Key) (verified bool, err error) {
	verified, err = f.checkAccount(ctx, k.Account, k)
	var unverified *accountUnverifiedError
	switch {
	case !errors.As(err, &unverified):
		return verified, err
	case f.byOperator:
		return false, nil
	}
	return false, fmt.Errorf("%w. The API reports %s %s as missing too; without that proof it does not count as "+
		"deleted. If the key is right, run postern refetches add, which accepts the result", err, k.Type, k.ID)
}

// checkRunAccount checks the account at the start of an attempt. It ends the run if the account is
// disconnected, or if the key belongs to another account. If the check has no result, an operator
// must approve the run.
func (w *execution) checkRunAccount(ctx context.Context) (runs.Status, error) {
	if w.params.Scope == Objects && w.hasFixedAccount() { // each scan of a type requests the provider's time
		return runs.Running, nil
	}
	if _, err := w.checkKey(ctx, w.params.Account); err != nil { // the response also has the provider's time
		return w.handleDisconnected(ctx, err)
	}
	if err := w.markConnected(ctx); err != nil {
		return "", err
	}
	_, err := w.checkAccount(ctx, w.params.Account, versioning.Key{})
	var otherAccount *otherAccountError
	var unverified *accountUnverifiedError
	switch {
	case errors.As(err, &otherAccount):
		return "", runs.Permanent(err)
	case !errors.As(err, &unverified):
		return runs.Running, err
	case w.params.DryRun: // it appends nothing
		w.unverified = unverified
		return runs.Running, nil
	case w.lease.IsApproved(w.keyApproval()):
		return runs.Running, nil
	}
	err = postgres.InTx(ctx, w.Pool, "request approval", stateTimeout, func(ctx context.Context, tx pgx.Tx) error {
		return w.lease.RequestApproval(ctx, tx, w.keyApproval(),
			fmt.Sprintf("%s. If the key is right all the same (the objects may be deleted), an operator must approve "+
				"this before the run continues: postern runs approve %d --reason TEXT", unverified, w.lease.Run.ID))
	})
	if err != nil {
		return "", err
	}
	return runs.AwaitingApproval, nil
}
