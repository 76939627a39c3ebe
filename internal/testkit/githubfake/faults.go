package githubfake

import (
	"fmt"
	"net/http"
	"time"
)

// Fault is something that goes wrong with one request.
type Fault int

// What can go wrong with a request.
const (
	// Fine: nothing goes wrong.
	Fine Fault = iota
	// Limited: 403, since the calls of the hour are used up; they are there again in a second.
	Limited
	// Hurried: 403 with Retry-After, since there were too many calls in a short time.
	Hurried
	// Broken: 500 in GitHub's shape; Garbled: 502 in nobody's.
	Broken
	Garbled
	// Dropped: the work is done and the connection ends without an answer.
	Dropped
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Limited, Hurried, Broken, Garbled, Dropped int
	// Lag is how old a state answers may show, objects and lists alike.
	Lag time.Duration
	// Skew is how far an answer's Date may be off the clock, either way.
	Skew time.Duration
	// Revoked: no key is known any more. Blind: the key sees no repository, as another one might not.
	Revoked, Blind bool
	// Hour is how many calls an hour of the clock has; 0: 5000.
	Hour int
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

// Met is how often a fault happened.
func (f *Fake) Met(fault Fault) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.met[fault]
}

// Requests are all that were made, as method and address.
func (f *Fake) Requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.requests...)
}

// fault is what goes wrong with the present request.
func (f *Fake) fault() Fault {
	fault := f.next()
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
	for i, percent := range []int{o.Limited, o.Hurried, o.Broken, o.Garbled, o.Dropped} {
		if n -= percent; n < 0 {
			return Limited + Fault(i)
		}
	}
	return Fine
}

// failed is the answer to a request that is not even looked at.
func (f *Fake) failed(fault Fault) (a answer, failed bool) {
	switch fault {
	case Limited:
		a = refusal(http.StatusForbidden, "API rate limit exceeded for user ID 77.")
		a.header = http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {fmt.Sprint(f.now()/second + 1)}}
		return a, true
	case Hurried:
		a = refusal(http.StatusForbidden, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.")
		a.header = http.Header{"Retry-After": {"1"}}
		return a, true
	case Broken:
		return refusal(http.StatusInternalServerError, "Server Error"), true
	case Garbled:
		return answer{status: http.StatusBadGateway, body: []byte("<html><h1>502 Bad Gateway</h1></html>")}, true
	}
	return answer{}, false
}

// hourly counts the request and says what is left of the hour.
func (f *Fake) hourly() http.Header {
	limit := f.options.Faults.Hour
	if limit == 0 {
		limit = 5000
	}
	hour := f.now() / (3600 * second)
	f.used[hour]++
	return http.Header{"X-Ratelimit-Limit": {fmt.Sprint(limit)}, "X-Ratelimit-Remaining": {fmt.Sprint(max(0, limit-f.used[hour]))}, "X-Ratelimit-Reset": {fmt.Sprint((hour + 1) * 3600)}}
}

// date is what an answer shows as its time.
func (f *Fake) date() string {
	at := time.UnixMicro(f.now())
	if skew := f.options.Faults.Skew; skew > 0 {
		at = at.Add(time.Duration(f.luck.Int64N(2*int64(skew)+1)) - skew)
	}
	return at.UTC().Format(http.TimeFormat)
}
