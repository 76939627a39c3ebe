package reconcile

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/versioning"
)

// shows remembers of which accounts the keys of sources were shown to be, so that not each look that finds nothing has to ask again. A configuration makes its sources anew, and another key has to be shown again;
// the same key never becomes another account's.
type shows struct {
	mu sync.Mutex
	by map[ownership]showing
	// doubts counts what has put that in doubt.
	doubts int
}

// ownership is that a source's key is of an account.
type ownership struct {
	source  *Source
	account string
}

// showing is what has shown it.
type showing struct {
	until time.Time
	// object is the one of the mirror that was found, nil where it was an event.
	object *versioning.Key
}

// begins is what remember wants to know of when the API was asked.
func (s *shows) begins() (doubts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubts
}

// remember keeps what has shown a key, unless it was put in doubt since.
func (s *shows) remember(o ownership, of showing, doubts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doubts != doubts {
		return
	}
	if s.by == nil {
		s.by = map[ownership]showing{}
	}
	now := time.Now()
	maps.DeleteFunc(s.by, func(_ ownership, old showing) bool { return !now.Before(old.until) })
	s.by[o] = of
}

// shown is what has shown it, if that is remembered and is not the object that is missing now.
func (s *shows) shown(o ownership, missing versioning.Key) (of showing, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok = s.by[o]
	return of, ok && time.Now().Before(of.until) && (of.object == nil || *of.object != missing)
}

// forget has everything shown again: a key may be good for less than it was, or an answer does not fit with what was shown.
func (s *shows) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by, s.doubts = nil, s.doubts+1
}

// missing has it believed that an object is missing, as a look was answered. What has shown the key of late is not asked for again, unless what the API answers now does not fit with it.
func (f *fetcher) missing(ctx context.Context, k versioning.Key, at where) (err error) {
	k.Source = f.source.Number
	of, remembered := f.Sources.shows.shown(ownership{f.source, k.Account}, k)
	shown := remembered
	if !remembered {
		if shown, err = f.oursFor(ctx, k); err != nil {
			return err
		}
	}
	err = f.believe(ctx, k, at)
	var silent *silentError
	if err == nil || errors.As(err, &silent) && shown && (!remembered || silent.quiet && of.object != nil) {
		return nil
	}
	f.Sources.shows.forget()
	if silent == nil || !remembered {
		return err
	}
	again, bad := f.oursFor(ctx, k) // it was shown some time ago
	if again || bad != nil {
		return bad
	}
	return err
}
