package stripefake

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Request is a request that the fake received.
type Request struct {
	// At is the real time of the request.
	At time.Time
	// Route is its method and path without ids ("GET /v1/customers/{id}"). Path and Query are as
	// received.
	Route, Path string
	Query       url.Values
	// Account is the connected account of the request, or empty for the account itself.
	Account string
	// Version is the API version of the request.
	Version string
	// Status is the status of the response, even if the response was lost.
	Status int
}

// recordRequest records a request.
func (f *Fake) recordRequest(r *http.Request) *Request {
	one := &Request{
		At: time.Now(), Route: route(r), Path: r.URL.Path, Query: r.URL.Query(),
		Version: r.Header.Get("Stripe-Version"),
		Account: r.Header.Get("Stripe-Account") + r.Header.Get("Stripe-Context"),
	}
	f.requests = append(f.requests, one)
	return one
}

func route(r *http.Request) string {
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	ids := 2 // number of parts before an id
	if path[0] == "v2" {
		ids = 3
	}
	for i := ids; i < len(path); i++ {
		path[i] = "{id}"
	}
	return r.Method + " /" + strings.Join(path, "/")
}

// Requests returns all requests since the start or the last ResetRequests, in their order.
func (f *Fake) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]Request, len(f.requests))
	for i, r := range f.requests {
		out[i] = *r
	}
	return out
}

// RequestsByRoute returns the number of requests of each route.
func (f *Fake) RequestsByRoute() map[string]int {
	counts := map[string]int{}
	for _, r := range f.Requests() {
		counts[r.Route]++
	}
	return counts
}

// ResetRequests deletes the recorded requests.
func (f *Fake) ResetRequests() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}
