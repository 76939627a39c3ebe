// Package refetch reads single objects again from the provider's API and appends them to the log
// as events. It keeps the queue of refetch requests and runs the worker that makes them. It checks
// that a missing object is really missing, and that the key belongs to the account whose webhooks
// arrive. Package reconcile uses it for the objects that differ. It never changes the mirror
// directly.
package refetch

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

// manualKey returns the key of a manual refetch. It is a separate event, so that the log records
// the operator and the reason even if another refetch has found the same state.
func manualKey(refetch string, verification []byte) string {
	return operatorKey("manual:", refetch, verification)
}

// overwriteKey returns the key of a refetch that overwrites its object. It differs from the key of
// the same refetch without overwriting. Within one run it is the same.
func overwriteKey(refetch string, verification []byte) string {
	return operatorKey("overwrite:", refetch, verification)
}

// operatorKey returns the key of a refetch that an operator requested, as the verification records.
func operatorKey(prefix, refetch string, verification []byte) string {
	digest := sha256.Sum256(append([]byte(refetch), verification...))
	return prefix + hex.EncodeToString(digest[:16])
}

// PanicError returns the error for a response that made the provider's code panic.
func PanicError(p any) error {
	return fmt.Errorf("reading the API's response panicked, which is a defect of this release (report it; a later "+
		"release may fix it): %v", p)
}

// ErrNoFetch: the provider's API has no call that reads such an object.
var ErrNoFetch = errors.New("the API has no call that reads objects of this type, or the key is of the " +
	"other mode (test or live)")

const mirroredSQL = `SELECT EXISTS (SELECT FROM objects WHERE source = $1 AND account = $2 AND object_type = $3
	AND object_id = $4)`

// IsUnknownObject reports whether a refetch found nothing and the mirror never had the object. The
// id may be mistyped, so the object must not appear as deleted.
func (f *Fetcher) IsUnknownObject(ctx context.Context, d *events.Delivery) (bool, error) {
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

// Fetcher reads the API of a source.
type Fetcher struct {
	*Resources
	Source *providerapi.Source
	// Verification is stored with a refetch, in the place of a delivery's verification result.
	Verification []byte
	// manual: an operator requested these refetches, as verification records.
	manual bool
	// ByOperator: an operator named the object to refetch.
	ByOperator bool
	// KeyApproved: an operator accepts the key, although no account check succeeded.
	KeyApproved bool
	// Overwrite is set if the refetch wins over all local history; nil if it does not.
	Overwrite *provider.Overwrite
}

// Call makes a call and handles its verdict. The error of a failure that no retry can resolve comes
// from runs.Permanent.
func (f *Fetcher) Call(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	c.Manual = f.ByOperator
	a, err := f.Source.Caller.Do(ctx, c)
	if err != nil {
		return nil, err
	}
	switch a.Verdict.Kind {
	case provider.Found, provider.Missing:
		return a, nil
	case provider.Rejected:
		f.ResetAccountChecks()
		// the key may have been replaced since
		if now := f.Sources.All()[f.Source.Number]; now != nil && now != f.Source {
			return nil, fmt.Errorf("the API of source %s: %s", f.Source.Name, a.Verdict.Detail)
		}
		return nil, runs.Permanent(&RejectedError{fmt.Sprintf("the API of source %s: %s", f.Source.Name,
			a.Verdict.Detail), a.Verdict.Disconnected})
	case provider.Expired:
		return nil, fmt.Errorf("the API of source %s: %w: %s", f.Source.Name, providerapi.ErrExpired, a.Verdict.Detail)
	}
	return nil, &providerapi.TemporaryError{Text: fmt.Sprintf("the API of source %s: %s", f.Source.Name,
		a.Verdict.Detail), Throttled: a.Verdict.Kind == provider.Throttled}
}

// MaskError masks the key in a reader's error, which may quote it.
func (f *Fetcher) MaskError(err error) error {
	if err == nil || !f.Source.API.ContainsKey(err.Error()) {
		return err
	}
	return &maskedError{err, f.Source.API.Mask(err.Error())}
}

// maskedError is an error with another message.
type maskedError struct {
	error
	text string
}

func (e *maskedError) Error() string { return e.text }

func (e *maskedError) Unwrap() error { return e.error }

// RejectedError: the API does not give the key access.
type RejectedError struct {
	Text string
	// Disconnected: the API rejects every call for the account.
	Disconnected bool
}

func (e *RejectedError) Error() string { return e.Text }

// Refetch reads an object from the API and returns the event to append. A missing object counts as
// deleted only if CheckMissing succeeds.
func (f *Fetcher) Refetch(ctx context.Context, k versioning.Key) (*events.Delivery, error) {
	location, ok, err := f.Locate(ctx, k, nil)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrNoFetch
	}
	a, err := f.FetchObject(ctx, k, location.Call)
	if err != nil {
		return nil, err
	}
	if a.Date.IsZero() {
		return nil, f.NoDateError()
	}
	refetched := &provider.Refetch{Snapshot: provider.Snapshot{Account: k.Account, ObjectType: k.Type, ObjectID: k.ID,
		APIVersion: f.Source.API.Version, Body: a.Body, API: f.Source.API},
		Date: a.Date.Add(a.Unmeasured), Elapsed: a.Elapsed + 2*a.Unmeasured, Lag: f.Source.Reader.Lag(),
		Overwrite: f.Overwrite}
	if a.Verdict.Kind == provider.Missing {
		if err := f.CheckMissing(ctx, k, location, false); err != nil {
			return nil, err
		}
		refetched.Missing, refetched.Body = true, nil
	}
	in, err := f.toInput(k, refetched, f.ReceiptTime())
	if err != nil {
		return nil, err
	}
	if in.OwnVersion {
		rows, err := f.SeenVersions(ctx, k, []string{k.ID})
		if err != nil {
			return nil, err
		}
		if row, ok := rows[k.ID]; ok {
			refetched.Reversioned = row.NeedsReversion(&in)
		}
	}
	return f.Delivery(k, refetched)
}

// toInput converts a refetch to the input of the version rule.
func (f *Fetcher) toInput(k versioning.Key, l *provider.Refetch, received time.Time) (versioning.Input, error) {
	obs, err := f.Source.Reader.Snapshot(f.Source.Config, &l.Snapshot)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: read the API's response: %w", f.Source.Name, k.Type,
			k.ID, f.MaskError(err))
	}
	in, err := versioning.InputFromRefetch(obs, l, received)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: %w", f.Source.Name, k.Type, k.ID, err)
	}
	return in, nil
}

// FetchObject makes the call that reads an object. If its response leads to another call, it
// returns that call's response.
func (f *Fetcher) FetchObject(ctx context.Context, k versioning.Key, call provider.Call) (*providerapi.Response,
	error) {
	a, err := f.Call(ctx, call)
	stepper, hasSteps := f.Source.Reader.(provider.TwoStepReader)
	if err != nil || !hasSteps || a.Verdict.Kind != provider.Found {
		return a, err
	}
	if next, ok := stepper.SecondCall(f.Source.API, k.Account, k.Type, k.ID, a.Body); ok {
		return f.Call(ctx, next)
	}
	return a, nil
}

// CheckKey checks that the key works for the account, and returns the response.
func (f *Fetcher) CheckKey(ctx context.Context, account string) (*providerapi.Response, error) {
	return f.checkFound(ctx, f.Source.Reader.CredentialCheck(f.Source.API, account))
}

func (f *Fetcher) checkFound(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	a, err := f.Call(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case a.Verdict.Kind != provider.Found:
		return nil, runs.Permanent(fmt.Errorf("the API of source %s does not find the resource that checks the key: "+
			"%s; check base_url and, for a described API, control, and check that the account still belongs to the key",
			f.Source.Name, a.Verdict.Detail))
	case a.Date.IsZero():
		return nil, f.NoDateError()
	}
	return a, nil
}

func (f *Fetcher) NoDateError() error {
	return fmt.Errorf("the responses of the API of source %s have no time (header Date), so the objects in them "+
		"cannot be ordered; check whether a proxy removes the header Date", f.Source.Name)
}

// WebhookAccount returns the account as the webhooks name it. They do not name the source's own
// account.
func (f *Fetcher) WebhookAccount(account string) string {
	if account == f.Source.Config.Account {
		return ""
	}
	return account
}

// Delivery returns the delivery that appends a refetch. Its key is a digest of the version
// and the state, so that an object that returns to an earlier state is a new refetch.
func (f *Fetcher) Delivery(k versioning.Key, l *provider.Refetch) (*events.Delivery, error) {
	now := f.ReceiptTime()
	in, err := f.toInput(k, l, now)
	if err != nil {
		return nil, err
	}
	key := refetchKey(k, in)
	if f.manual {
		key = manualKey(key, f.Verification)
	}
	if l.Overwrite != nil {
		if in.Partial != "" {
			return nil, runs.Permanent(fmt.Errorf("source %s, %s %s: the API's response cannot overwrite anything: %s",
				f.Source.Name, k.Type, k.ID, in.Partial))
		}
		key = overwriteKey(key, f.Verification)
	}
	body, err := l.Encode()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", f.Source.Name, f.MaskError(err))
	}
	return &events.Delivery{Source: f.Source.Number, ReceivedAt: now, Origin: events.OriginReconcile,
		Headers: []byte(`{}`), Verification: f.Verification, Body: body,
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
