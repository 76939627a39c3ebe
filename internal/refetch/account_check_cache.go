package refetch

import (
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

// isVerified reports whether a successful check is cached. A check whose sample is the missing
// object does not count.
func (s *accountCheckCache) isVerified(key sourceKey, missing versioning.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	check, ok := s.entries[key]
	return ok && time.Now().Before(check.validUntil) && (check.sample == nil || *check.sample != missing)
}

// ResetAccountChecks deletes all successful checks, because the key may have lost access or is
// another one, or because a response contradicts a check.
func (r *Resources) ResetAccountChecks() {
	r.accountChecks.mu.Lock()
	defer r.accountChecks.mu.Unlock()
	r.accountChecks.entries, r.accountChecks.generation = nil, r.accountChecks.generation+1
}
