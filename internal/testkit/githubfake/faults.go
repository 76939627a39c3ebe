package githubfake

import (
	"fmt"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is something that goes wrong with one request.
type Fault = fakeapi.Fault

// What can go wrong with a request.
const (
	// Fine: nothing goes wrong.
	Fine = fakeapi.Fine
	// Limited: 403, since the calls of the hour are used up; they are there again in a second.
	Limited = fakeapi.Limited
	// Hurried: 403 with Retry-After, since there were too many calls in a short time.
	Hurried = fakeapi.Locked
	// Broken: 500 in GitHub's shape; Garbled: 502 in nobody's.
	Broken  = fakeapi.Broken
	Garbled = fakeapi.Garbled
	// Dropped: the work is done and the connection ends without an answer; Cut: in the middle of it.
	Dropped = fakeapi.Dropped
	Cut     = fakeapi.Cut
	// Expired: the cursor that the request names is no longer known.
	Expired = fakeapi.Expired
)

// Faults say what goes wrong. Percentages are of the requests.
type Faults struct {
	Limited, Hurried, Broken, Garbled, Dropped, Cut, Expired int
	// Lag is how old a state answers may show, objects and lists alike.
	Lag time.Duration
	// ListLag is how much older a state lists of objects may show than other answers.
	ListLag time.Duration
	// Late is how long after its time a delivery may come into the lists.
	Late time.Duration
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

// Shut has a repository, counted from 0, answer with a status whatever is asked of it: 404 as one that is gone, 410, 451 and 403 as one that may not be read, 500 as one in trouble; 0 opens it again.
func (f *Fake) Shut(repository, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shut[f.repos[repository]] = status
}

// closed is what a repository answers that is shut.
func (c *call) closed(r *repo) (a answer, shut bool) {
	texts := map[int]string{http.StatusNotFound: "Not Found", http.StatusGone: "Issues has been disabled in this repository.", http.StatusUnavailableForLegalReasons: "Repository access blocked",
		http.StatusForbidden: "Resource not accessible by personal access token", http.StatusInternalServerError: "Server Error", http.StatusMovedPermanently: "Moved Permanently"}
	return refusal(c.shut[r], texts[c.shut[r]]), c.shut[r] != 0
}

// Requests are all that were made, as method and address.
func (f *Fake) Requests() []string { return f.Asked() }

// fault is what goes wrong with the present request.
func (f *Fake) fault(r *http.Request) Fault {
	o := f.options.Faults
	return f.Meet(r, fakeapi.Odds{Limited: o.Limited, Hurried: o.Hurried, Broken: o.Broken, Garbled: o.Garbled, Dropped: o.Dropped, Cut: o.Cut, Expired: o.Expired})
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
