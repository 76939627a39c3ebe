package reconcile

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/versioning"
)

// accountCheckCache caches successful account checks, so that refetches of missing objects do not
// repeat them. Each configuration has new sources, so another key is checked again. A key never
// changes its account.
type accountCheckCache struct {
	mu      sync.Mutex
	entries map[sourceKey]accountCheck
	// generation counts the resets.
	generation int
}

// sourceKey is a source's key together with an account.
type sourceKey struct {
	source  *providerapi.Source
	account string
}

// accountCheck is a successful check.
type accountCheck struct {
	validUntil time.Time
	// sample is the mirrored object that was found, nil if it was an event.
	sample *versioning.Key
}

// currentGeneration returns the generation to pass to store. It is read before the API is called.
func (s *accountCheckCache) currentGeneration() (generation int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// store caches a check, unless the cache was reset since the generation was read.
func (s *accountCheckCache) store(key sourceKey, check accountCheck, generation int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != generation {
		return
	}
	if s.entries == nil {
		s.entries = map[sourceKey]accountCheck{}
	}
	now := time.Now()
	maps.DeleteFunc(s.entries, func(_ sourceKey, old accountCheck) bool { return !now.Before(old.validUntil) })
	s.entries[key] = check
}

// lookup returns a cached check. A check whose sample is the missing object does not count.
func (s *accountCheckCache) lookup(key sourceKey, missing versioning.Key) (check accountCheck, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	check, ok = s.entries[key]
	return check, ok && time.Now().Before(check.validUntil) && (check.sample == nil || *check.sample != missing)
}

// reset deletes all checks, because the key may have lost access, or because a response contradicts
// a check.
func (s *accountCheckCache) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.generation = nil, s.generation+1
}

// checkMissing checks that an object is missing, as a refetch has reported. It uses a cached
// account check, unless the API's responses contradict it.
func (f *fetcher) checkMissing(ctx context.Context, k versioning.Key, location location) (err error) {
	k.Source = f.source.Number
	check, cached := f.accountChecks.lookup(sourceKey{f.source, k.Account}, k)
	verified := cached
	if !cached {
		if verified, err = f.checkAccountFor(ctx, k); err != nil {
			return err
		}
	}
	err = f.checkMissingAt(ctx, k, location)
	var inconclusive *inconclusiveListError
	if err == nil || errors.As(err, &inconclusive) && verified &&
		(!cached || inconclusive.listEmpty && check.sample != nil) {
		return nil
	}
	f.accountChecks.reset()
	if inconclusive == nil || !cached {
		return err
	}
	verifiedAgain, failure := f.checkAccountFor(ctx, k) // the cached check is from earlier
	if verifiedAgain || failure != nil {
		return failure
	}
	return err
}
