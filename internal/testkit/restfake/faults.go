package restfake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is a fault of a request.
type Fault = fakeapi.Fault

// The faults.
const (
	// NoFault: the request succeeds.
	NoFault = fakeapi.NoFault
	// Throttled: 429, to be retried after a second.
	Throttled = fakeapi.RateLimited
	// ServerError: 500.
	ServerError = fakeapi.ServerError
	// ConnectionDropped: the request is executed and the response is lost.
	ConnectionDropped = fakeapi.Dropped
	// CursorExpired: the cursor of the request is no longer valid.
	CursorExpired = fakeapi.CursorExpired
)

// Faults configures the faults. Percentages are of the requests.
type Faults struct {
	Throttled, ServerError, ConnectionDropped, CursorExpired int
	// Lag is the largest age of the state in responses, for objects and lists. ListLag is the
	// additional age of lists.
	Lag, ListLag time.Duration
	// DateSkew is the largest difference between the Date of a response and the clock, in either
	// direction.
	DateSkew time.Duration
	// Revoked: the key is no longer valid.
	Revoked bool
}

// SetFaults changes the faults from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

func (f *Fake) fault(r *http.Request) Fault {
	if f.NextFault != nil {
		if fault := f.NextFault(r); fault != NoFault {
			return f.RecordRequest(r, fault)
		}
	}
	o := f.options.Faults
	return f.ChooseFault(r, fakeapi.Odds{Throttled: o.Throttled, ServerError: o.ServerError,
		ConnectionDropped: o.ConnectionDropped, CursorExpired: o.CursorExpired})
}

// randomAge returns a random duration up to longest.
func (f *Fake) randomAge(longest time.Duration) time.Duration {
	return time.Duration(f.RandomUpTo(longest)) * time.Microsecond
}
