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

const stateSQL = `SELECT o.state FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4`

// newestSQL gives the newest event of an object that is no look. Of each hash there are few objects, as a rule one.
const newestSQL = `
SELECT o.event_id FROM outcomes o JOIN events e ON e.id = o.event_id AND e.event_type <> 'postern.look'
WHERE o.object = $1 AND o.object <> 0 AND o.run = 0 AND o.source = $2 AND o.account = $3 AND o.object_type = $4 AND o.object_id = $5 ORDER BY o.event_id DESC LIMIT 1`

// where is where an object is read.
type where struct {
	call provider.Call
	// located: the call follows from what is known of the object, and proof is found wherever the credentials would see it there.
	located bool
	proof   provider.Call
}

// Reads says whether the API reads an object by its name.
func (s *Source) Reads(account, objectType, id string) bool {
	_, ok := s.Reader.Fetch(s.Config, s.API, account, objectType, id)
	return ok
}

// Locates says whether the API lists objects of a type, and reads them by what is known of them.
func (s *Source) Locates(account, objectType string) bool {
	_, locates := s.Reader.(provider.Locator)
	lister, lists := s.Reader.(provider.ObjectLister)
	if !locates || !lists {
		return false
	}
	_, ok := lister.Lists(s.Config, s.API, account)[objectType]
	return ok
}

// find is where an object is read: by its name, or by what is known of it, which told adds to; false where the provider's API has no call for it, or not with this key.
func (f *fetcher) find(ctx context.Context, k versioning.Key, told []byte) (at where, ok bool, err error) {
	k.Source = f.source.Number
	if at.call, ok = f.source.Reader.Fetch(f.source.Config, f.source.API, k.Account, k.Type, k.ID); ok {
		other, err := f.otherMode(ctx, k)
		return at, !other && err == nil, err
	}
	l, ok := f.source.Reader.(provider.Locator)
	if !ok {
		return at, false, nil
	}
	state, err := f.state(ctx, k)
	if err != nil {
		return at, false, err
	}
	newest, err := f.newest(ctx, k)
	if err != nil {
		return at, false, err
	}
	if state == nil {
		state = told
	}
	at.call, at.proof, ok = l.Locate(f.source.API, k.Account, k.Type, k.ID, state, newest)
	at.located = true
	return at, ok, nil
}

// otherMode says whether an object is in the mode that the key does not read: to it the object would be missing.
func (f *fetcher) otherMode(ctx context.Context, k versioning.Key) (bool, error) {
	m, ok := f.source.Reader.(provider.ModeReader)
	if !ok {
		return false, nil
	}
	state, err := f.state(ctx, k)
	return err == nil && state != nil && m.OtherMode(f.source.API, state), err
}

// state is what the mirror has of an object, nil where it has nothing.
func (f *fetcher) state(ctx context.Context, k versioning.Key) (state []byte, err error) {
	err = f.Pool.QueryRow(ctx, stateSQL, k.Source, k.Account, k.Type, k.ID).Scan(&state)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("read what is known of %s %s: %w", k.Type, k.ID, err)
	}
	return state, nil
}

// believe proves that an object is missing at a place, and not only out of the reach of the key.
func (f *fetcher) believe(ctx context.Context, k versioning.Key, at where) error {
	if at.located {
		return f.seen(ctx, k, at.proof)
	}
	return f.believable(ctx, k)
}

// newest is the newest event of an object that is no look, nil where there is none.
func (f *fetcher) newest(ctx context.Context, k versioning.Key) (*provider.Stored, error) {
	var id int64
	err := f.Pool.QueryRow(ctx, newestSQL, k.Hash(), k.Source, k.Account, k.Type, k.ID).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for an event of %s %s: %w", k.Type, k.ID, err)
	}
	recs, err := events.Read(ctx, f.Pool, []int64{id}, events.AnyBody)
	if err != nil || len(recs) == 0 { // retention may have dropped it meanwhile
		return nil, err
	}
	return &recs[0].Stored, nil
}

// unseenError: it is not believed that an object is missing.
type unseenError struct{ text string }

func (e *unseenError) Error() string { return e.text }

// seen proves that the credentials would see an object at its place. The error is an *unseenError where they may not.
func (f *fetcher) seen(ctx context.Context, k versioning.Key, proof provider.Call) error {
	if proof.Path == "" {
		return &unseenError{fmt.Sprintf("the API of source %s says that an object is missing, which may as well be kept from the key: nothing shows which, so it is not believed", f.source.Name)}
	}
	a, err := f.call(ctx, proof)
	var refused *refusedError
	if errors.As(err, &refused) { // the list alone may be kept from the key
		if _, err := f.control(ctx, k.Account); err != nil {
			return err
		}
		return &unseenError{fmt.Sprintf("the API of source %s says that an object is missing, and refuses the list that it would be in, so it is not believed: %s", f.source.Name, refused.text)}
	}
	if err == nil && a.Verdict.Kind != provider.Found {
		err = &unseenError{fmt.Sprintf("the API of source %s says that an object is missing, and that the list it would be in is too: it is not believed; may the key read it?", f.source.Name)}
	}
	return err
}
