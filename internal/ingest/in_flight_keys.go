package ingest

import (
	"sync"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// inFlightKeys are the keys that this gateway is appending now, for sources whose senders get a 409
// for such a key. Between gateways PostgreSQL decides: the second append waits for the commit of
// the first and gets its receipt.
type inFlightKeys struct {
	mu   sync.Mutex
	keys map[inFlightKey]struct{}
}

type inFlightKey struct {
	source string
	digest [16]byte
}

// reserve reserves a delivery's keys until release is called. It returns false and reserves none if
// one of them is reserved already.
func (f *inFlightKeys) reserve(source string, evs []provider.Event) (release func(), ok bool) {
	keys := make(map[inFlightKey]struct{}, len(evs)) // a delivery may contain an event twice
	for _, e := range evs {
		keys[inFlightKey{source, events.KeyDigest(e.Key)}] = struct{}{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range keys {
		if _, reserved := f.keys[key]; reserved {
			return nil, false
		}
	}
	if f.keys == nil {
		f.keys = map[inFlightKey]struct{}{}
	}
	for key := range keys {
		f.keys[key] = struct{}{}
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for key := range keys {
			delete(f.keys, key)
		}
	}, true
}
