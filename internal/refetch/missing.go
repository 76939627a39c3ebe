package refetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// checkAccountFor checks the account after a refetch has found nothing. If an operator named the
// object, a check without a result is no error.
func (f *Fetcher) checkAccountFor(ctx context.Context, k versioning.Key) (verified bool, err error) {
	verified, err = f.CheckAccount(ctx, k.Account, k)
	var unverified *AccountUnverifiedError
	switch {
	case !errors.As(err, &unverified):
		return verified, err
	case f.ByOperator:
		return false, nil
	}
	return false, fmt.Errorf("%w. The API reports %s %s as missing too; without that proof it does not count as "+
		"deleted. If the key is right, run postern refetches add, which accepts the result", err, k.Type, k.ID)
}

// checkMissing checks that an object is missing, as a refetch has reported. It uses a cached
// account check, unless the API's responses contradict it.
func (f *Fetcher) checkMissing(ctx context.Context, k versioning.Key, location Location) (err error) {
	k.Source = f.Source.Number
	check, cached := f.accountChecks.lookup(sourceKey{f.Source, k.Account}, k)
	verified := cached
	if !cached {
		if verified, err = f.checkAccountFor(ctx, k); err != nil {
			return err
		}
	}
	err = f.CheckMissingAt(ctx, k, location)
	var inconclusive *InconclusiveListError
	if err == nil || errors.As(err, &inconclusive) && verified &&
		(!cached || inconclusive.ListEmpty && check.sample != nil) {
		return nil
	}
	f.ResetAccountChecks()
	if inconclusive == nil || !cached {
		return err
	}
	verifiedAgain, failure := f.checkAccountFor(ctx, k) // the cached check is from earlier
	if verifiedAgain || failure != nil {
		return failure
	}
	return err
}

const countStoredKeysSQL = `
SELECT count(*) FROM unnest($2::bytea[]) AS d(key) CROSS JOIN LATERAL (SELECT k.id FROM event_keys k WHERE k.source = $1
	AND k.key = d.key LIMIT 1) k`

// CheckMissingAt checks that an object is missing at its location, and not only invisible to the
// key.
func (f *Fetcher) CheckMissingAt(ctx context.Context, k versioning.Key, at Location) error {
	if at.Located {
		return f.checkListVisible(ctx, k, at.VisibilityCheck)
	}
	return f.checkAccountVisible(ctx, k)
}

// MissingUnconfirmedError: the check that an object is missing did not succeed.
type MissingUnconfirmedError struct{ Text string }

func (e *MissingUnconfirmedError) Error() string { return e.Text }

// checkListVisible checks that the key could see an object at its location. Otherwise the error is
// a *MissingUnconfirmedError.
func (f *Fetcher) checkListVisible(ctx context.Context, k versioning.Key, visibilityCheck provider.Call) error {
	if visibilityCheck.Path == "" {
		return &MissingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, or the key "+
			"has no access to it: nothing shows which, so it does not count as deleted", f.Source.Name)}
	}
	a, err := f.Call(ctx, visibilityCheck)
	var rejected *RejectedError
	if errors.As(err, &rejected) { // the key may lack access to the list only
		if _, err := f.CheckKey(ctx, k.Account); err != nil {
			return err
		}
		return &MissingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, and rejects "+
			"the list that it would be in, so it does not count as deleted: %s", f.Source.Name, rejected.Text)}
	}
	if err == nil && a.Verdict.Kind != provider.Found {
		err = &MissingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, and the list "+
			"that it would be in too, so it does not count as deleted; may the key read that list?", f.Source.Name)}
	}
	return err
}

// InconclusiveListError: no event in the API's list shows which account the key belongs to.
type InconclusiveListError struct {
	Text string
	// ListEmpty: the list has no events. Otherwise the log lacks the newest listed event: its type
	// is not subscribed, it is on its way, or it belongs to another account.
	ListEmpty bool
}

func (e *InconclusiveListError) Error() string { return e.Text }

// WithAdvice adds what the operator can do.
func (e *InconclusiveListError) WithAdvice() error {
	return fmt.Errorf("%w. Nothing else shows it either, so the object does not count as deleted: change anything in "+
		"the account that sends a webhook to this source, and try again", e)
}

// checkAccountVisible checks that the key belongs to the account of the log. If the API lists
// events, one of the newest must be in the log; else the error is an *InconclusiveListError. With a
// key of another account every object would be missing.
func (f *Fetcher) checkAccountVisible(ctx context.Context, k versioning.Key) error {
	call := f.Source.Reader.CredentialCheck(f.Source.API, k.Account)
	if perObject, ok := f.Source.Reader.(provider.ObjectCredentialChecker); ok {
		call = perObject.ObjectCredentialCheck(f.Source.Config, f.Source.API, k.Account, k.Type, k.ID)
	}
	a, err := f.checkFound(ctx, call)
	lister, ok := f.Source.Reader.(provider.EventLister)
	if err != nil || !ok {
		return err
	}
	bodies, _, err := lister.EventPage(f.WebhookAccount(k.Account), a.Body)
	if err != nil {
		return fmt.Errorf("source %s: %w", f.Source.Name, f.MaskError(err))
	}
	if len(bodies) == 0 {
		return &InconclusiveListError{fmt.Sprintf("the API of source %s reports an object as missing, and lists no "+
			"more events that would show that the key belongs to the account and mode of the log", f.Source.Name), true}
	}
	var keys [][]byte
	for _, body := range bodies {
		identified, err := f.Source.Provider.Identify(f.Source.Config, &provider.Delivery{Body: body})
		if err != nil {
			continue // of an account that the source does not accept
		}
		for _, e := range identified {
			digest := events.KeyDigest(e.Key)
			keys = append(keys, digest[:])
		}
	}
	var stored int64
	if err := f.Pool.QueryRow(ctx, countStoredKeysSQL, f.Source.Number, keys).Scan(&stored); err != nil {
		return fmt.Errorf("look for %d keys: %w", len(keys), err)
	}
	if stored == 0 {
		return &InconclusiveListError{fmt.Sprintf("the API of source %s reports an object as missing, and the newest "+
			"event that it lists is not in the log; it would show that the key belongs to the account and mode of "+
			"the log", f.Source.Name), false}
	}
	return nil
}
