package refetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// MissingUnconfirmedError: the check that an object is missing did not succeed.
type MissingUnconfirmedError struct{ Text string }

func (e *MissingUnconfirmedError) Error() string { return e.Text }

// CheckMissing confirms the API's report that an object is missing. It checks that the key belongs
// to the account of the log and the mirror, and that it can see the object's place. A cached
// account check is enough unless again is set. Errors: *MissingUnconfirmedError,
// *OtherAccountError, *AccountUnverifiedError.
func (f *Fetcher) CheckMissing(ctx context.Context, k versioning.Key, at Location, again bool) error {
	k.Source = f.Source.Number
	cached := !again && f.accountChecks.isVerified(sourceKey{f.Source, k.Account}, k)
	if !cached && !f.KeyApproved {
		verified, err := f.checkAccountOfMissing(ctx, k)
		_, listsEvents := f.Source.Reader.(provider.EventLister)
		if err != nil || verified && listsEvents && !at.Located { // the key has just found an event or an object
			return err
		}
	}
	err := f.checkPlaceVisible(ctx, k, at)
	if err != nil {
		f.ResetAccountChecks()
	}
	return err
}

// checkAccountOfMissing checks the account after the API has reported an object as missing. An
// operator who named the object accepts that the check has no result. Where the API lists events,
// the mirror and the log must have a sample otherwise.
func (f *Fetcher) checkAccountOfMissing(ctx context.Context, k versioning.Key) (verified bool, err error) {
	verified, err = f.CheckAccount(ctx, k.Account, k)
	_, listsEvents := f.Source.Reader.(provider.EventLister)
	switch unverified := errors.As(err, new(*AccountUnverifiedError)); {
	case f.ByOperator && unverified:
		return false, nil
	case unverified:
		return false, fmt.Errorf("%w. The API reports %s %s as missing too; without the account check it does not "+
			"count as deleted. If the key is right, run postern refetches add, which accepts the result", err, k.Type,
			k.ID)
	case err == nil && !verified && listsEvents && !f.ByOperator:
		return false, &MissingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, and "+
			"nothing shows that the key belongs to the account and mode of the log. So the object does not count as "+
			"deleted: change anything in the account that sends a webhook to this source, or run postern refetches "+
			"add, which accepts the result", f.Source.Name)}
	}
	return verified, err
}

// checkPlaceVisible checks that the key can see the place of a missing object.
func (f *Fetcher) checkPlaceVisible(ctx context.Context, k versioning.Key, at Location) error {
	if at.Located {
		return f.checkListVisible(ctx, k, at.VisibilityCheck)
	}
	_, err := f.checkFound(ctx, f.PlaceCheck(k))
	return err
}

// PlaceCheck returns the call that finds something if the key can see the place of an object that
// is read by its id.
func (f *Fetcher) PlaceCheck(k versioning.Key) provider.Call {
	if perObject, ok := f.Source.Reader.(provider.ObjectCredentialChecker); ok {
		return perObject.ObjectCredentialCheck(f.Source.Config, f.Source.API, k.Account, k.Type, k.ID)
	}
	return f.Source.Reader.CredentialCheck(f.Source.API, k.Account)
}

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
			"that it would be in too, so it does not count as deleted; give the key access to that list",
			f.Source.Name)}
	}
	return err
}
