package stripefake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is a fault of one request.
type Fault = fakeapi.Fault

// The faults of a request. With Dropped, Truncated and Hung the request is executed and the
// response is lost.
const (
	// NoFault: the request succeeds.
	NoFault = fakeapi.NoFault
	// RateLimited: 429 with the reason in a header and without Retry-After.
	RateLimited = fakeapi.RateLimited
	// Locked: 429 because another request holds the lock of the object, without a reason header.
	Locked = fakeapi.Locked
	// ServerError: 500 in Stripe's format. Garbled: 502 with an HTML page.
	ServerError = fakeapi.ServerError
	Garbled     = fakeapi.Garbled
	// Dropped: the connection ends without a response. Truncated: it ends in the middle of the
	// response.
	Dropped   = fakeapi.Dropped
	Truncated = fakeapi.Truncated
	// Hung: there is no response until the client gives up.
	Hung = fakeapi.Hung
	// Slow: the response takes SlowDuration.
	Slow = fakeapi.Slow
	// CursorExpired: the cursor of a list is no longer valid. Other requests are not affected.
	CursorExpired = fakeapi.CursorExpired
)

// Faults configures the faults. Percentages are of the requests.
type Faults struct {
	RateLimited, Locked, ServerError, Garbled, Dropped, Truncated, Hung, Slow, CursorExpired int
	// SlowDuration is the real time of a slow response. Zero means 50 ms.
	SlowDuration time.Duration
	// Lag is the largest age of the state in responses, for objects and lists.
	Lag time.Duration
	// ListLag is the additional age of the state in lists of objects.
	ListLag time.Duration
	// MaxListDelay is the longest time until lists show an event.
	MaxListDelay time.Duration
	// DateSkew is the largest difference between the Date of a response and the clock that stamps
	// events and objects, in either direction.
	DateSkew time.Duration
	// DateAhead is a constant that is added to the Date of responses. It may be negative.
	DateAhead time.Duration
	// Revoked: no key is valid. SeesNothing: the account looks empty, as another account would.
	Revoked, SeesNothing bool
	// Disconnected are connected accounts for which no key may act any more.
	Disconnected []string
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
	return f.ChooseFault(r, fakeapi.Odds{RateLimited: o.RateLimited, Locked: o.Locked, ServerError: o.ServerError,
		Garbled: o.Garbled, Dropped: o.Dropped, Truncated: o.Truncated, Hung: o.Hung, Slow: o.Slow,
		CursorExpired: o.CursorExpired})
}

// failed returns the response of a request that is rejected before it is executed.
func (f *Fake) failed(fault Fault) (a response, failed bool) {
	switch fault {
	case RateLimited:
		reason := [...]string{"global-rate", "endpoint-rate", "global-concurrency", "endpoint-concurrency",
			"resource-specific"}[f.Random(5)]
		limit := apiError{status: http.StatusTooManyRequests, reason: reason, Code: "rate_limit",
			Message: "Request rate limit exceeded."}
		return limit.response(), true
	case Locked:
		lock := apiError{status: http.StatusTooManyRequests, Code: "lock_timeout",
			Message: "This object cannot be accessed right now because another API request or Stripe process is " +
				"currently accessing it."}
		return lock.response(), true
	case ServerError:
		broken := apiError{status: http.StatusInternalServerError, Type: "api_error",
			Message: "An unknown error occurred"}
		return broken.response(), true
	case Garbled:
		return response{status: http.StatusBadGateway, header: http.Header{"Content-Type": {"text/html"}},
			body: []byte("<html><h1>502 Bad Gateway</h1></html>")}, true
	}
	return response{}, false
}

// responseTiming returns the duration of a slow response, and the skew and the offset of the Date
// header.
func (f *Fake) responseTiming() (slow, skew, ahead time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slow = f.options.Faults.SlowDuration; slow == 0 {
		slow = 50 * time.Millisecond
	}
	return slow, f.options.Faults.DateSkew, f.options.Faults.DateAhead
}
