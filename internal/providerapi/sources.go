package providerapi

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Source is a source whose provider's API can be read.
type Source struct {
	Name   string
	Number int32
	Config *provider.Source
	// ExcludedAccounts are accounts that a run over all accounts excludes, by the provider's names,
	// "" for the account that the key belongs to.
	ExcludedAccounts []string
	API              *provider.API
	Provider         provider.Provider
	// Reader reads the API: the provider or, if the source describes its API, that description. It
	// may also implement EventLister, ObjectLister and other interfaces.
	Reader provider.Reader
	// Caller calls the API, within the rate budget that all processes share.
	Caller Caller
}

// Reads reports whether the API can read an object by its id.
func (s *Source) Reads(account, objectType, id string) bool {
	_, ok := s.Reader.Fetch(s.Config, s.API, account, objectType, id)
	return ok
}

// Locates reports whether the API lists the objects of a type and reads them with known data.
func (s *Source) Locates(account, objectType string) bool {
	_, locates := s.Reader.(provider.Locator)
	lister, lists := s.Reader.(provider.ObjectLister)
	if !locates || !lists {
		return false
	}
	_, ok := lister.Lists(s.Config, s.API, account)[objectType]
	return ok
}

// Caller calls a provider's API. Client implements it.
type Caller interface {
	// Do makes one call when the budget allows it, and classifies the response. An error is a
	// failure on this side.
	Do(ctx context.Context, c provider.Call) (*Response, error)
	// Download opens a file that the API has named, starting at a byte, without sending the key.
	Download(ctx context.Context, account, address string, offset int64) (io.ReadCloser, error)
	// Now returns the time on the provider's clock, as far as it is known.
	Now() time.Time
	// MaxLatency returns the longest recent time until the first byte of a response.
	MaxLatency() time.Duration
	// Skew returns the least possible lead of the provider's clock over the database's; negative:
	// it is behind. Of the recent responses, the one with the largest difference counts.
	Skew() time.Duration
}

// Sources are the sources whose API can be read, by number. A new configuration replaces them.
type Sources struct {
	current atomic.Pointer[map[int32]*Source]
	// cancelRunning ends the refetches of the previous sources.
	cancelRunning atomic.Pointer[context.CancelFunc]
}

// Replace sets the sources.
func (s *Sources) Replace(sources ...*Source) {
	byNumber := map[int32]*Source{}
	for _, one := range sources {
		byNumber[one.Number] = one
	}
	s.current.Store(&byNumber)
	if cancel := s.cancelRunning.Load(); cancel != nil {
		(*cancel)()
	}
}

// All returns the current sources.
func (s *Sources) All() map[int32]*Source {
	if now := s.current.Load(); now != nil {
		return *now
	}
	return nil
}

// CancelOnReplace makes the next Replace call a function, which ends what runs for the previous
// sources. It replaces the function of an earlier call.
func (s *Sources) CancelOnReplace(cancel context.CancelFunc) { s.cancelRunning.Store(&cancel) }
