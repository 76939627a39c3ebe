package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// errNoFetch: the provider's API has no call that reads such an object.
var errNoFetch = errors.New("the API cannot read objects of that type by id or with known data, or not with " +
	"a key of this mode (test or live)")

// refetchObject refetches one object.
func (w *execution) refetchObject(ctx context.Context) (runs.Status, error) {
	if w.lease.Bound == 0 {
		if err := w.lease.SetBound(ctx, 1); err != nil {
			return "", err
		}
	}
	if w.params.Overwrite {
		w.overwrite = w.newOverwrite(ctx)
	}
	d, err := w.refetch(ctx, versioning.Key{Account: w.params.Account, Type: w.params.Type, ID: w.params.ID})
	if errors.Is(err, errNoFetch) {
		return "", runs.Permanent(fmt.Errorf("source %s, %s: %w", w.source.Name, w.params.Type, err))
	}
	var inconclusive *inconclusiveListError
	switch {
	case isOtherObject(err), errors.As(err, new(*otherAccountError)), errors.As(err, new(*missingUnconfirmedError)):
		return "", runs.Permanent(err)
	case errors.As(err, &inconclusive):
		return "", runs.Permanent(inconclusive.withAdvice())
	}
	if err != nil {
		return "", err
	}
	unknown, err := w.isUnknownObject(ctx, d)
	if err != nil {
		return "", err
	}
	if unknown {
		w.pendingCounts[Processed]++
		w.pendingCounts[Absent]++
	}
	if unknown || w.params.DryRun {
		return w.advanceCheckpoint(ctx, 1)
	}
	appended, err := w.appendDeliveries(ctx, []events.Delivery{*d})
	if err != nil {
		return "", err
	}
	if status, err := w.waitForOutcomes(ctx, appended); err != nil || status != runs.Running {
		return status, err
	}
	return w.advanceCheckpoint(ctx, 1)
}

// Absent counts objects that neither the mirror nor the API has. Nothing is appended for them.
const Absent = "absent"

const mirroredSQL = `SELECT EXISTS (SELECT FROM objects WHERE source = $1 AND account = $2 AND object_type = $3
	AND object_id = $4)`

// isUnknownObject reports whether a refetch found nothing and the mirror never had the object. The
// id may be mistyped, so the object must not appear as deleted.
func (f *fetcher) isUnknownObject(ctx context.Context, d *events.Delivery) (bool, error) {
	l, err := provider.DecodeRefetch(d.Body)
	if err != nil || !l.Missing {
		return false, err
	}
	var mirrored bool
	if err := f.Pool.QueryRow(ctx, mirroredSQL, d.Source, l.Account, l.ObjectType,
		l.ObjectID).Scan(&mirrored); err != nil {
		return false, fmt.Errorf("look up %s %s in the mirror: %w", l.ObjectType, l.ObjectID, err)
	}
	return !mirrored, nil
}

// fetcher reads the API of a source.
type fetcher struct {
	*Runner
	source *providerapi.Source
	// verification is stored with a refetch, in the place of a delivery's verification result.
	verification []byte
	// manual: an operator requested these refetches, as verification records.
	manual bool
	// byOperator: an operator named the object to refetch.
	byOperator bool
	// overwrite is set if the refetch wins over all local history; nil if it does not.
	overwrite *provider.Overwrite
}

// call makes a call and handles its verdict. The error of a failure that no retry can resolve comes
// from runs.Permanent.
func (f *fetcher) call(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	c.Manual = f.byOperator
	a, err := f.source.Caller.Do(ctx, c)
	if err != nil {
		return nil, err
	}
	switch a.Verdict.Kind {
	case provider.Found, provider.Missing:
		return a, nil
	case provider.Rejected:
		f.accountChecks.reset()
		// the key may have been replaced since
		if now := f.Sources.All()[f.source.Number]; now != nil && now != f.source {
			return nil, fmt.Errorf("the API of source %s: %s", f.source.Name, a.Verdict.Detail)
		}
		return nil, runs.Permanent(&rejectedError{fmt.Sprintf("the API of source %s: %s", f.source.Name,
			a.Verdict.Detail), a.Verdict.Disconnected})
	case provider.Expired:
		return nil, fmt.Errorf("the API of source %s: %w: %s", f.source.Name, providerapi.ErrExpired, a.Verdict.Detail)
	}
	return nil, &providerapi.TemporaryError{Text: fmt.Sprintf("the API of source %s: %s", f.source.Name,
		a.Verdict.Detail), Throttled: a.Verdict.Kind == provider.Throttled}
}

// maskError masks the key in a reader's error, which may quote it.
func (f *fetcher) maskError(err error) error {
	if err == nil || !f.source.API.ContainsKey(err.Error()) {
		return err
	}
	return &maskedError{err, f.source.API.Mask(err.Error())}
}

// maskedError is an error with another message.
type maskedError struct {
	error
	text string
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.error }

// rejectedError: the API does not give the key access.
type rejectedError struct {
	text string
	// disconnected: the API rejects every call for the account.
	disconnected bool
}

func (e *rejectedError) Error() string { return e.text }

// refetch reads an object from the API and returns the event to append. A missing object counts as
// deleted only if checkMissing succeeds.
func (f *fetcher) refetch(ctx context.Context, k versioning.Key) (*events.Delivery, error) {
	location, ok, err := f.locate(ctx, k, nil)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoFetch
	}
	a, err := f.fetchObject(ctx, k, location.call)
	if err != nil {
		return nil, err
	}
	if a.Date.IsZero() {
		return nil, f.noDateError()
	}
	refetched := &provider.Refetch{Snapshot: provider.Snapshot{Account: k.Account, ObjectType: k.Type, ObjectID: k.ID,
		APIVersion: f.source.API.Version, Body: a.Body, API: f.source.API},
		Date: a.Date.Add(a.Unmeasured), Elapsed: a.Elapsed + 2*a.Unmeasured, Lag: f.source.Reader.Lag(),
		Overwrite: f.overwrite}
	if a.Verdict.Kind == provider.Missing {
		if err := f.checkMissing(ctx, k, location); err != nil {
			return nil, err
		}
		refetched.Missing, refetched.Body = true, nil
	}
	it := &item{id: k.ID, refetch: refetched}
	if it.input, err = f.toInput(k, refetched, f.receiptTime()); err != nil {
		return nil, err
	}
	if err := f.reversionRefetches(ctx, k, []*item{it}); err != nil {
		return nil, err
	}
	return f.refetchDelivery(k, refetched)
}

// toInput converts a refetch to the input of the version rule.
func (f *fetcher) toInput(k versioning.Key, l *provider.Refetch, received time.Time) (versioning.Input, error) {
	obs, err := f.source.Reader.Snapshot(f.source.Config, &l.Snapshot)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: read the API's response: %w", f.source.Name, k.Type,
			k.ID, f.maskError(err))
	}
	in, err := versioning.InputFromRefetch(obs, l, received)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: %w", f.source.Name, k.Type, k.ID, err)
	}
	return in, nil
}

// fetchObject makes the call that reads an object. If its response leads to another call, it
// returns that call's response.
func (f *fetcher) fetchObject(ctx context.Context, k versioning.Key, call provider.Call) (*providerapi.Response,
	error) {
	a, err := f.call(ctx, call)
	stepper, hasSteps := f.source.Reader.(provider.TwoStepReader)
	if err != nil || !hasSteps || a.Verdict.Kind != provider.Found {
		return a, err
	}
	if next, ok := stepper.SecondCall(f.source.API, k.Account, k.Type, k.ID, a.Body); ok {
		return f.call(ctx, next)
	}
	return a, nil
}

// checkKey checks that the key works for the account, and returns the response.
func (f *fetcher) checkKey(ctx context.Context, account string) (*providerapi.Response, error) {
	return f.checkFound(ctx, f.source.Reader.CredentialCheck(f.source.API, account))
}

func (f *fetcher) checkFound(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	a, err := f.call(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case a.Verdict.Kind != provider.Found:
		return nil, &absentError{fmt.Sprintf("the API of source %s does not find the resource that checks the key: "+
			"%s; check base_url and, for a described API, control, and check that the account still belongs to the key",
			f.source.Name, a.Verdict.Detail)}
	case a.Date.IsZero():
		return nil, f.noDateError()
	}
	return a, nil
}

func (f *fetcher) noDateError() error {
	return fmt.Errorf("the responses of the API of source %s have no time (header Date), so the objects in them "+
		"cannot be ordered; is there a proxy in between?", f.source.Name)
}

// checkAccountVisible checks that the key belongs to the account of the log. If the API lists
// events, one of the newest must be in the log; else the error is an *inconclusiveListError. With a
// key of another account every object would be missing.
func (f *fetcher) checkAccountVisible(ctx context.Context, k versioning.Key) error {
	call := f.source.Reader.CredentialCheck(f.source.API, k.Account)
	if perObject, ok := f.source.Reader.(provider.ObjectCredentialChecker); ok {
		call = perObject.ObjectCredentialCheck(f.source.Config, f.source.API, k.Account, k.Type, k.ID)
	}
	a, err := f.checkFound(ctx, call)
	lister, ok := f.source.Reader.(provider.EventLister)
	if err != nil || !ok {
		return err
	}
	bodies, _, err := lister.EventPage(f.webhookAccount(k.Account), a.Body)
	if err != nil {
		return fmt.Errorf("source %s: %w", f.source.Name, f.maskError(err))
	}
	if len(bodies) == 0 {
		return &inconclusiveListError{fmt.Sprintf("the API of source %s reports an object as missing, and lists no "+
			"more events that would show that the key belongs to the account and mode of the log", f.source.Name), true}
	}
	var keys [][]byte
	for _, body := range bodies {
		identified, err := f.source.Provider.Identify(f.source.Config, &provider.Delivery{Body: body})
		if err != nil {
			continue // of an account that the source does not accept
		}
		for _, e := range identified {
			digest := events.KeyDigest(e.Key)
			keys = append(keys, digest[:])
		}
	}
	var stored int64
	if err := f.Pool.QueryRow(ctx, countStoredKeysSQL, f.source.Number, keys).Scan(&stored); err != nil {
		return fmt.Errorf("look for %d keys: %w", len(keys), err)
	}
	if stored == 0 {
		return &inconclusiveListError{fmt.Sprintf("the API of source %s reports an object as missing, and the newest "+
			"event that it lists is not in the log; it would show that the key belongs to the account and mode of "+
			"the log", f.source.Name), false}
	}
	return nil
}

// webhookAccount returns the account as the webhooks name it. They do not name the source's own
// account.
func (f *fetcher) webhookAccount(account string) string {
	if account == f.source.Config.Account {
		return ""
	}
	return account
}

// refetchDelivery returns the delivery that appends a refetch. Its key is a digest of the version
// and the state, so that an object that returns to an earlier state is a new refetch.
func (f *fetcher) refetchDelivery(k versioning.Key, l *provider.Refetch) (*events.Delivery, error) {
	now := f.receiptTime()
	in, err := f.toInput(k, l, now)
	if err != nil {
		return nil, err
	}
	key := refetchKey(k, in)
	if f.manual {
		key = manualKey(key, f.verification)
	}
	if l.Overwrite != nil {
		if in.Partial != "" {
			return nil, runs.Permanent(fmt.Errorf("source %s, %s %s: the API's response cannot overwrite anything: %s",
				f.source.Name, k.Type, k.ID, in.Partial))
		}
		key = overwriteKey(key, f.verification)
	}
	body, err := l.Encode()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", f.source.Name, f.maskError(err))
	}
	return &events.Delivery{Source: f.source.Number, ReceivedAt: now, Origin: events.OriginReconcile,
		Headers: []byte(`{}`), Verification: f.verification, Body: body,
		Events: []provider.Event{{Key: key, Type: provider.RefetchType, Account: k.Account, ObjectType: k.Type,
			ObjectID: k.ID, OccurredAt: l.Date.UTC(),
			APIVersion: l.APIVersion, Fingerprint: [16]byte(in.State.ExactHash[:16])}}}, nil
}

// refetchKey identifies a refetch by object, version and state.
func refetchKey(k versioning.Key, in versioning.Input) string {
	h := sha256.New()
	for _, part := range []string{k.Account, k.Type, k.ID} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	fmt.Fprintf(h, "%v %d %d %d %s", in.Version.Final, in.Version.At, in.Version.Seen, in.Version.Rank, in.Partial)
	h.Write(in.State.ExactHash[:])
	return "refetch:" + hex.EncodeToString(h.Sum(nil)[:16])
}
