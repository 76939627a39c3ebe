package stripefake

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Request is one request that the fake was asked.
type Request struct {
	// At is when it came, in real time.
	At time.Time
	// Route is its method and path without ids ("GET /v1/customers/{id}"); Path and Query are as asked.
	Route, Path string
	Query       url.Values
	// Account is the connected account it was for, "" for the own one.
	Account string
	// Version is the API version it asked for.
	Version string
	// Status is what was answered, even where the answer got lost.
	Status int

	limited string // the limit that it met
}

// count notes a request and whether it is one too many.
func (f *Fake) count(r *http.Request) *Request {
	one := &Request{
		At: time.Now(), Route: route(r), Path: r.URL.Path, Query: r.URL.Query(), Version: r.Header.Get("Stripe-Version"),
		Account: r.Header.Get("Stripe-Account") + r.Header.Get("Stripe-Context"),
	}
	f.requests = append(f.requests, one)
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	o := f.options.Faults
	switch {
	case o.Rate > 0 && len(f.requests) > o.Rate && one.At.Sub(f.requests[len(f.requests)-1-o.Rate].At) < time.Second:
		one.limited = "global-rate"
	case o.Concurrent > 0 && f.inFlight > o.Concurrent:
		one.limited = "global-concurrency"
	}
	return one
}

func route(r *http.Request) string {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	ids := 2 // parts before an id
	if path[0] == "v2" {
		ids = 3
	}
	for i := ids; i < len(path); i++ {
		path[i] = "{id}"
	}
	return r.Method + " /" + strings.Join(path, "/")
}

// Requests are all requests since the start or the last Forget, in the order in which they came.
func (f *Fake) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Request, len(f.requests))
	for i, r := range f.requests {
		out[i] = *r
	}
	return out
}

// Counts is how many requests each route got.
func (f *Fake) Counts() map[string]int {
	counts := map[string]int{}
	for _, r := range f.Requests() {
		counts[r.Route]++
	}
	return counts
}

// Peak is the greatest number of requests that came within any stretch of real time of the given length.
func (f *Fake) Peak(length time.Duration) int {
	requests := f.Requests()
	first, peak := 0, 0
	for i, r := range requests {
		for r.At.Sub(requests[first].At) >= length {
			first++
		}
		peak = max(peak, i-first+1)
	}
	return peak
}

// MostAtOnce is the greatest number of requests that were being answered at one moment.
func (f *Fake) MostAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// Forget clears the counts.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests, f.most = nil, f.inFlight
}
