package shopifyfake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is what goes wrong with one request.
type Fault = fakeapi.Fault

// What may go wrong.
const (
	// Fine: nothing goes wrong.
	Fine = fakeapi.Fine
	// Throttled is answered THROTTLED by GraphQL, with 200, and 429 by REST.
	Throttled = fakeapi.Limited
	// Broken is answered 502 by what stands before Shopify.
	Broken = fakeapi.Broken
	// Dropped: the work is done, and no answer comes; Cut: half of it comes.
	Dropped = fakeapi.Dropped
	Cut     = fakeapi.Cut
	// Expired: the cursor that the request names is no longer known.
	Expired = fakeapi.Expired
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Throttled, Broken, Dropped, Cut, Expired int
	// Lag is how old a state an answer may show, and Late how far a list that is asked for by time may be behind.
	Lag, Late time.Duration
	// Skew is how far an answer's Date may be off the shop's clock, either way.
	Skew time.Duration
	// Revoked: the key is no longer known.
	Revoked bool
	// Calls is how many REST calls the bucket holds and Points how many points, restored at 2 and 100 a second of real time; 0: it never empties.
	Calls, Points float64
}

// SetFaults replaces what goes wrong from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// fault is what goes wrong with the present request.
func (f *Fake) fault(r *http.Request) Fault {
	o := f.options.Faults
	return f.Meet(r, fakeapi.Odds{Throttled: o.Throttled, Broken: o.Broken, Dropped: o.Dropped, Cut: o.Cut, Expired: o.Expired})
}

// bucket is what calls are paid from.
type bucket struct {
	most, rate, left float64
	at               time.Time
	// endless: nothing is taken.
	endless bool
}

func newBucket(size, most, rate float64) bucket {
	if size == 0 {
		return bucket{most: most, rate: rate, left: most, endless: true}
	}
	return bucket{most: size, rate: rate, left: size, at: time.Now()}
}

func (b *bucket) now() float64 {
	if !b.endless {
		now := time.Now()
		b.left, b.at = min(b.most, b.left+now.Sub(b.at).Seconds()*b.rate), now
	}
	return b.left
}

func (b *bucket) take(n float64) bool {
	if b.endless {
		return true
	}
	if b.now() < n {
		return false
	}
	b.left -= n
	return true
}
