package refetch

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

// Location is how an object is read.
type Location struct {
	Call provider.Call
	// Located: the call follows from known data of the object. VisibilityCheck then finds something
	// if the key can see the object's place.
	Located         bool
	VisibilityCheck provider.Call
}

// Locate returns how an object is read: by its id, or with known data. The known data is the
// mirrored state or, without one, listed; and the newest event. ok is false if the provider's API
// has no call for it, or none for this key.
func (f *Fetcher) Locate(ctx context.Context, k versioning.Key, listed []byte) (location Location, ok bool, err error) {
	k.Source = f.Source.Number
	if location.Call, ok = f.Source.Reader.Fetch(f.Source.Config, f.Source.API, k.Account, k.Type, k.ID); ok {
		wrongMode, err := f.isOtherMode(ctx, k)
		return location, !wrongMode && err == nil, err
	}
	locator, ok := f.Source.Reader.(provider.Locator)
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
	location.Call, location.VisibilityCheck, ok = locator.Locate(f.Source.API, k.Account, k.Type, k.ID, state, newest)
	location.Located = true
	return location, ok, nil
}

// isOtherMode reports whether an object belongs to the mode that the key cannot read. With this key
// the object would look missing.
func (f *Fetcher) isOtherMode(ctx context.Context, k versioning.Key) (bool, error) {
	m, ok := f.Source.Reader.(provider.ModeReader)
	if !ok {
		return false, nil
	}
	state, err := f.mirrorState(ctx, k)
	return err == nil && state != nil && m.OtherMode(f.Source.API, state), err
}

// mirrorState returns the mirrored state of an object, nil for none.
func (f *Fetcher) mirrorState(ctx context.Context, k versioning.Key) (state []byte, err error) {
	err = f.Pool.QueryRow(ctx, mirrorStateSQL, k.Source, k.Account, k.Type, k.ID).Scan(&state)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read the mirrored state of %s %s: %w", k.Type, k.ID, err)
	}
	return state, nil
}

// newestEvent returns the newest event of an object that is not a refetch, nil for none.
func (f *Fetcher) newestEvent(ctx context.Context, k versioning.Key) (*provider.StoredEvent, error) {
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
