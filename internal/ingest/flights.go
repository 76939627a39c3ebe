package ingest

import (
	"sync"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// flights are the keys whose deliveries this gateway is appending, of sources whose senders are told so. Between gateways PostgreSQL decides: who comes second waits for the first's commit, and
// gets its receipt.
type flights struct {
	mu  sync.Mutex
	all map[flight]struct{}
}

type flight struct {
	source string
	digest [16]byte
}

// begin marks a delivery's keys until end is called; false where one of them is marked already, and then it has marked none.
func (f *flights) begin(source string, evs []provider.Event) (end func(), ok bool) {
	mine := make(map[flight]struct{}, len(evs)) // a delivery may hold an event twice
	for _, e := range evs {
		mine[flight{source, events.KeyDigest(e.Key)}] = struct{}{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range mine {
		if _, under := f.all[key]; under {
			return nil, false
		}
	}
	if f.all == nil {
		f.all = map[flight]struct{}{}
	}
	for key := range mine {
		f.all[key] = struct{}{}
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for key := range mine {
			delete(f.all, key)
		}
	}, true
}
