package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

const mirrorStateSQL = `SELECT o.state FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3
	AND o.object_id = $4`

// newestEventSQL returns the newest event of an object that is not a refetch. Usually only one
// object has the hash.
const newestEventSQL = `
SELECT o.event_id FROM outcomes o JOIN events e ON e.id = o.event_id AND e.event_type <> 'postern.refetch'
WHERE o.object = $1 AND o.object <> 0 AND o.run = 0 AND o.source = $2 AND o.account = $3 AND o.object_type = $4
	AND o.object_id = $5 ORDER BY o.event_id DESC LIMIT 1`

// location is how an object is read.
type location struct {
	call provider.Call
	// located: the call follows from known data of the object. visibilityCheck then finds something
	// if the key can see the object's place.
	located         bool
	visibilityCheck provider.Call
}

// locate returns how an object is read: by its id, or with known data. The known data is the
// mirrored state or, without one, listed; and the newest event. ok is false if the provider's API
// has no call for it, or none for this key.
func (f *fetcher) locate(ctx context.Context, k versioning.Key, listed []byte) (location location, ok bool, err error) {
	k.Source = f.source.Number
	if location.call, ok = f.source.Reader.Fetch(f.source.Config, f.source.API, k.Account, k.Type, k.ID); ok {
		wrongMode, err := f.isOtherMode(ctx, k)
		return location, !wrongMode && err == nil, err
	}
	locator, ok := f.source.Reader.(provider.Locator)
	if !ok {
		return location, false, nil
	}
	state, err := f.mirrorState(ctx, k)
	if err != nil {
		return location, false, err
	}
	newest, err := f.newestEvent(ctx, k)
	if err != nil {
		return location, false, err
	}
	if state == nil {
		state = listed
	}
	location.call, location.visibilityCheck, ok = locator.Locate(f.source.API, k.Account, k.Type, k.ID, state, newest)
	location.located = true
	return location, ok, nil
}

// isOtherMode reports whether an object belongs to the mode that the key cannot read. With this key
// the object would look missing.
func (f *fetcher) isOtherMode(ctx context.Context, k versioning.Key) (bool, error) {
	m, ok := f.source.Reader.(provider.ModeReader)
	if !ok {
		return false, nil
	}
	state, err := f.mirrorState(ctx, k)
	return err == nil && state != nil && m.OtherMode(f.source.API, state), err
}

// mirrorState returns the mirrored state of an object, nil for none.
func (f *fetcher) mirrorState(ctx context.Context, k versioning.Key) (state []byte, err error) {
	err = f.Pool.QueryRow(ctx, mirrorStateSQL, k.Source, k.Account, k.Type, k.ID).Scan(&state)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read the mirrored state of %s %s: %w", k.Type, k.ID, err)
	}
	return state, nil
}

// checkMissingAt checks that an object is missing at its location, and not only invisible to the
// key.
func (f *fetcher) checkMissingAt(ctx context.Context, k versioning.Key, at location) error {
	if at.located {
		return f.checkListVisible(ctx, k, at.visibilityCheck)
	}
	return f.checkAccountVisible(ctx, k)
}

// newestEvent returns the newest event of an object that is not a refetch, nil for none.
func (f *fetcher) newestEvent(ctx context.Context, k versioning.Key) (*provider.StoredEvent, error) {
	var id int64
	err := f.Pool.QueryRow(ctx, newestEventSQL, k.Hash(), k.Source, k.Account, k.Type, k.ID).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the newest event of %s %s: %w", k.Type, k.ID, err)
	}
	recs, err := events.Read(ctx, f.Pool, []int64{id}, events.UnlimitedBody)
	if err != nil || len(recs) == 0 { // retention may have dropped it meanwhile
		return nil, err
	}
	return &recs[0].StoredEvent, nil
}

// missingUnconfirmedError: the check that an object is missing did not succeed.
type missingUnconfirmedError struct{ text string }

func (e *missingUnconfirmedError) Error() string { return e.text }

// checkListVisible checks that the key could see an object at its location. Otherwise the error is
// a *missingUnconfirmedError.
func (f *fetcher) checkListVisible(ctx context.Context, k versioning.Key, visibilityCheck provider.Call) error {
	if visibilityCheck.Path == "" {
		return &missingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, or the key "+
			"has no access to it: nothing shows which, so it does not count as deleted", f.source.Name)}
	}
	a, err := f.call(ctx, visibilityCheck)
	var rejected *rejectedError
	if errors.As(err, &rejected) { // the key may lack access to the list only
		if _, err := f.checkKey(ctx, k.Account); err != nil {
			return err
		}
		return &missingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, and rejects "+
			"the list that it would be in, so it does not count as deleted: %s", f.source.Name, rejected.text)}
	}
	if err == nil && a.Verdict.Kind != provider.Found {
		err = &missingUnconfirmedError{fmt.Sprintf("the API of source %s reports an object as missing, and the list "+
			"that it would be in too, so it does not count as deleted; may the key read that list?", f.source.Name)}
	}
	return err
}
