package shopifyfake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is a fault of one request.
type Fault = fakeapi.Fault

// The faults.
const (
	// NoFault: the request succeeds.
	NoFault = fakeapi.NoFault
	// Throttled is THROTTLED with status 200 in GraphQL and 429 in REST.
	Throttled = fakeapi.RateLimited
	// ServerError is a 502 from a proxy in front of Shopify.
	ServerError = fakeapi.ServerError
	// Dropped: the request is executed and there is no response. Truncated: there is half of the
	// response.
	Dropped   = fakeapi.Dropped
	Truncated = fakeapi.Truncated
	// CursorExpired: the cursor of the request is no longer valid.
	CursorExpired = fakeapi.CursorExpired
)

// Faults configures the faults. Percentages are of the requests.
type Faults struct {
	Throttled, ServerError, Dropped, Truncated, CursorExpired int
	// Lag is the largest age of the state in responses. MaxListDelay is the additional age of lists
	// by time.
	Lag, MaxListDelay time.Duration
	// DateSkew is the largest difference between the Date of a response and the clock of the shop,
	// in either direction.
	DateSkew time.Duration
	// Revoked: the key is no longer valid.
	Revoked bool
	// Calls is the capacity of the bucket for REST calls and Points that for GraphQL points. They
	// are refilled at 2 and 100 a second of real time. Zero means that the bucket never empties.
	Calls, Points float64
}

// SetFaults changes the faults from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// fault returns the fault of the current request.
func (f *Fake) fault(r *http.Request) Fault {
	o := f.options.Faults
	return f.ChooseFault(r, fakeapi.Odds{Throttled: o.Throttled, ServerError: o.ServerError, Dropped: o.Dropped,
		Truncated:     o.Truncated,
		CursorExpired: o.CursorExpired})
}

// bucket is a leaky bucket for calls or points.
type bucket struct {
	capacity, rate, remaining float64
	at                        time.Time
	// endless: the bucket never empties.
	endless bool
}

func newBucket(size, most, rate float64) bucket {
	if size == 0 {
		return bucket{capacity: most, rate: rate, remaining: most, endless: true}
	}
	return bucket{capacity: size, rate: rate, remaining: size, at: time.Now()}
}

func (b *bucket) refill() float64 {
	if !b.endless {
		now := time.Now()
		b.remaining, b.at = min(b.capacity, b.remaining+now.Sub(b.at).Seconds()*b.rate), now
	}
	return b.remaining
}

func (b *bucket) take(n float64) bool {
	if b.endless {
		return true
	}
	if b.refill() < n {
		return false
	}
	b.remaining -= n
	return true
}
