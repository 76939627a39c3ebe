package githubfake

import (
	"fmt"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// Fault is a fault of one request.
type Fault = fakeapi.Fault

// The faults of a request.
const (
	// NoFault: the request succeeds.
	NoFault = fakeapi.NoFault
	// HourlyLimited: 403 because the calls of the hour are used up. The limit is reset after a
	// second.
	HourlyLimited = fakeapi.RateLimited
	// SecondaryLimited: 403 with Retry-After because there were too many calls in a short time.
	SecondaryLimited = fakeapi.Locked
	// ServerError: 500 in GitHub's format. Garbled: 502 with an HTML page.
	ServerError = fakeapi.ServerError
	Garbled     = fakeapi.Garbled
	// Dropped: the request is executed and the connection ends without a response. Truncated: it
	// ends in the middle of the response.
	Dropped   = fakeapi.Dropped
	Truncated = fakeapi.Truncated
	// CursorExpired: the cursor of the request is no longer valid.
	CursorExpired = fakeapi.CursorExpired
)

// Faults configures the faults. Percentages are of the requests.
type Faults struct {
	HourlyLimited, SecondaryLimited, ServerError, Garbled, Dropped, Truncated, CursorExpired int
	// Lag is the largest age of the state in responses, for objects and lists.
	Lag time.Duration
	// ListLag is the additional age of the state in lists of objects.
	ListLag time.Duration
	// MaxListDelay is the longest time until lists show a delivery.
	MaxListDelay time.Duration
	// DateSkew is the largest difference between the Date of a response and the clock, in either
	// direction.
	DateSkew time.Duration
	// Revoked: no key is valid. SeesNothing: the key sees no repository, as another key might.
	Revoked, SeesNothing bool
	// CallsPerHour is the number of calls in an hour of the clock. Zero means 5000.
	CallsPerHour int
}

// SetFaults changes the faults from now on.
func (f *Fake) SetFaults(faults Faults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.options.Faults = faults
}

// SetRepositoryStatus makes all requests to a repository, counted from 0, return a status: 404 if
// it is deleted, 410, 451 and 403 if it may not be read, 500 if it fails. Zero ends that.
func (f *Fake) SetRepositoryStatus(repository, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.repositoryStatus[f.repos[repository]] = status
}

// repositoryResponse returns the response of a repository with such a status.
func (c *call) repositoryResponse(r *repo) (a response, shut bool) {
	texts := map[int]string{http.StatusNotFound: "Not Found",
		http.StatusGone:                       "Issues has been disabled in this repository.",
		http.StatusUnavailableForLegalReasons: "Repository access blocked",
		http.StatusForbidden:                  "Resource not accessible by personal access token",
		http.StatusInternalServerError:        "Server Error", http.StatusMovedPermanently: "Moved Permanently"}
	return errorResponse(c.repositoryStatus[r], texts[c.repositoryStatus[r]]), c.repositoryStatus[r] != 0
}

// Requests returns all requests as method and address.
func (f *Fake) Requests() []string { return f.RequestLines() }

// fault returns the fault of the current request.
func (f *Fake) fault(r *http.Request) Fault {
	o := f.options.Faults
	return f.ChooseFault(r, fakeapi.Odds{HourlyLimited: o.HourlyLimited, SecondaryLimited: o.SecondaryLimited,
		ServerError: o.ServerError, Garbled: o.Garbled,
		Dropped: o.Dropped, Truncated: o.Truncated, CursorExpired: o.CursorExpired})
}

// failed returns the response of a request that is rejected before it is executed.
func (f *Fake) failed(fault Fault) (a response, failed bool) {
	switch fault {
	case HourlyLimited:
		a = errorResponse(http.StatusForbidden, "API rate limit exceeded for user ID 77.")
		a.header = http.Header{"X-Ratelimit-Limit": {"5000"}, "X-Ratelimit-Remaining": {"0"},
			"X-Ratelimit-Reset": {fmt.Sprint(f.now()/second + 1)}}
		return a, true
	case SecondaryLimited:
		a = errorResponse(http.StatusForbidden, "You have exceeded a secondary rate limit. Please wait a few minutes "+
			"before you try again.")
		a.header = http.Header{"Retry-After": {"1"}}
		return a, true
	case ServerError:
		return errorResponse(http.StatusInternalServerError, "Server Error"), true
	case Garbled:
		return response{status: http.StatusBadGateway, body: []byte("<html><h1>502 Bad Gateway</h1></html>")}, true
	}
	return response{}, false
}

// countCall counts the request and returns the headers with the remaining calls of the hour.
func (f *Fake) countCall() http.Header {
	limit := f.options.Faults.CallsPerHour
	if limit == 0 {
		limit = 5000
	}
	hour := f.now() / (3600 * second)
	f.callsByHour[hour]++
	return http.Header{"X-Ratelimit-Limit": {fmt.Sprint(limit)},
		"X-Ratelimit-Remaining": {fmt.Sprint(max(0, limit-f.callsByHour[hour]))},
		"X-Ratelimit-Reset":     {fmt.Sprint((hour + 1) * 3600)}}
}
