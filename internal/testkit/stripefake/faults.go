package stripefake

import (
	"net/http"
	"time"
)

// Fault is something that goes wrong with one request.
type Fault int

// What can go wrong with a request. After Dropped, Cut and Hung the work was done and the answer is lost.
const (
	// Fine: nothing goes wrong.
	Fine Fault = iota
	// Limited: 429 with the reason in a header and no Retry-After.
	Limited
	// Locked: 429 because another request holds the object's lock; no header.
	Locked
	// Broken: 500 in Stripe's shape; Garbled: 502 in nobody's.
	Broken
	Garbled
	// Dropped: the connection ends without an answer; Cut: in the middle of it.
	Dropped
	Cut
	// Hung: no answer until the client gives up.
	Hung
	// Slow: the answer takes SlowFor.
	Slow
	// Expired: a list's cursor is no longer known; other requests are fine.
	Expired
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
	// Revoked: no key is known any more. Blind: the account looks empty, as another one would.
	Revoked, Blind bool
	// Rate is how many requests are let in within any second of real time; Concurrent, how many at once. 0: any number.
	Rate, Concurrent int
}

// SetFaults replaces what goes wrong from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// Script says what goes wrong with the next requests, one by one, before chance decides again.
func (f *Fake) Script(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script = append(f.script, faults...)
}

// Met is how often each fault happened.
func (f *Fake) Met(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met[fault]
}

// fault is what goes wrong with the present request.
func (f *Fake) fault(one *Request) Fault {
	fault := Limited
	if one.limited == "" {
		fault = f.next()
	}
	f.met[fault]++
	return fault
}

func (f *Fake) next() Fault {
	if len(f.script) > 0 {
		fault := f.script[0]
		f.script = f.script[1:]
		return fault
	}
	o := f.options.Faults
	n := f.luck.IntN(100)
	for i, percent := range []int{o.Limited, o.Locked, o.Broken, o.Garbled, o.Dropped, o.Cut, o.Hung, o.Slow, o.Expired} {
		if n -= percent; n < 0 {
			return Limited + Fault(i)
		}
	}
	return Fine
}

// failed is the answer to a request that is not even looked at.
func (f *Fake) failed(fault Fault, reason string) (a answer, failed bool) {
	switch fault {
	case Limited:
		if reason == "" {
			reason = [...]string{"global-rate", "endpoint-rate", "global-concurrency", "endpoint-concurrency", "resource-specific"}[f.luck.IntN(5)]
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

func (f *Fake) slowness() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.options.Faults.SlowFor; d > 0 {
		return d
	}
	return 50 * time.Millisecond
}

// date puts the answer's time into the header.
func (f *Fake) date(h http.Header) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.now()
	if skew := f.options.Faults.Skew.Microseconds(); skew > 0 {
		at += f.luck.Int64N(2*skew+1) - skew
	}
	h.Set("Date", time.UnixMicro(at).UTC().Format(http.TimeFormat))
}
