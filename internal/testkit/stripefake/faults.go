package stripefake

import (
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is something that goes wrong with one request.
type Fault = fakeapi.Fault

// What can go wrong with a request. After Dropped, Cut and Hung the work was done and the answer is lost.
const (
	// Fine: nothing goes wrong.
	Fine = fakeapi.Fine
	// Limited: 429 with the reason in a header and no Retry-After.
	Limited = fakeapi.Limited
	// Locked: 429 because another request holds the object's lock; no header.
	Locked = fakeapi.Locked
	// Broken: 500 in Stripe's shape; Garbled: 502 in nobody's.
	Broken  = fakeapi.Broken
	Garbled = fakeapi.Garbled
	// Dropped: the connection ends without an answer; Cut: in the middle of it.
	Dropped = fakeapi.Dropped
	Cut     = fakeapi.Cut
	// Hung: no answer until the client gives up.
	Hung = fakeapi.Hung
	// Slow: the answer takes SlowFor.
	Slow = fakeapi.Slow
	// Expired: a list's cursor is no longer known; other requests are fine.
	Expired = fakeapi.Expired
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Limited, Locked, Broken, Garbled, Dropped, Cut, Hung, Slow, Expired int
	// SlowFor is how long a slow answer takes, in real time; 0: 50 ms.
	SlowFor time.Duration
	// Lag is how old a state answers may show, objects and lists alike.
	Lag time.Duration
	// ListLag is how much older a state lists of objects may show than other answers.
	ListLag time.Duration
	// Late is how long after its time an event may come into the lists.
	Late time.Duration
	// Skew is how far an answer's Date may be off the clock that events and objects are stamped by, either way.
	Skew time.Duration
	// Ahead is how far an answer's Date is ahead of that clock, always; negative: behind.
	Ahead time.Duration
	// Revoked: no key is known any more. Blind: the account looks empty, as another one would.
	Revoked, Blind bool
	// Disconnected are connected accounts that no key may act for any more.
	Disconnected []string
	// Rate is how many requests are let in within any second of real time; Concurrent, how many at once. 0: any number.
	Rate, Concurrent int
}

// SetFaults replaces what goes wrong from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// fault is what goes wrong with the present request.
func (f *Fake) fault(r *http.Request, one *Request) Fault {
	o := f.options.Faults
	if one.limited != "" {
		return f.Note(r, Limited)
	}
	return f.Meet(r, fakeapi.Odds{Limited: o.Limited, Locked: o.Locked, Broken: o.Broken, Garbled: o.Garbled, Dropped: o.Dropped, Cut: o.Cut, Hung: o.Hung, Slow: o.Slow, Expired: o.Expired})
}

// failed is the answer to a request that is not even looked at.
func (f *Fake) failed(fault Fault, reason string) (a answer, failed bool) {
	switch fault {
	case Limited:
		if reason == "" {
			reason = [...]string{"global-rate", "endpoint-rate", "global-concurrency", "endpoint-concurrency", "resource-specific"}[f.Luck(5)]
		}
		limit := failure{status: http.StatusTooManyRequests, reason: reason, Code: "rate_limit", Message: "Request rate limit exceeded."}
		return limit.answer(), true
	case Locked:
		lock := failure{status: http.StatusTooManyRequests, Code: "lock_timeout", Message: "This object cannot be accessed right now because another API request or Stripe process is currently accessing it."}
		return lock.answer(), true
	case Broken:
		broken := failure{status: http.StatusInternalServerError, Type: "api_error", Message: "An unknown error occurred"}
		return broken.answer(), true
	case Garbled:
		return answer{status: http.StatusBadGateway, header: http.Header{"Content-Type": {"text/html"}}, body: []byte("<html><h1>502 Bad Gateway</h1></html>")}, true
	}
	return answer{}, false
}

// slowness is how long a slow answer takes, and how far its Date may be off, and is ahead.
func (f *Fake) slowness() (slow, skew, ahead time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slow = f.options.Faults.SlowFor; slow == 0 {
		slow = 50 * time.Millisecond
	}
	return slow, f.options.Faults.Skew, f.options.Faults.Ahead
}
