package shopifyfake

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// response is a response of the API.
type response struct {
	status int
	header http.Header
	body   []byte
}

// call is an authorized request.
type call struct {
	fake      *Fake
	now       int64 // the time of the state that the response shows
	expired   bool  // every cursor is invalid
	variables map[string]any
}

// Request is a request that the fake received.
type Request struct {
	At time.Time
	// Method and Path are as received. The path of a query ends in graphql.json.
	Method, Path string
	Status       int
}

// ServeHTTP serves a request as Shopify does, with its fault.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.options.BeforeRequest != nil {
		f.options.BeforeRequest()
	}
	f.mu.Lock()
	fault, skew := f.fault(r), f.options.Faults.DateSkew
	a := f.respond(r, fault)
	f.requests = append(f.requests, Request{At: time.Now(), Method: r.Method, Path: r.URL.Path, Status: a.status})
	f.mu.Unlock()
	h := http.Header{"Date": {f.Date(skew, 0)}, "Content-Type": {"application/json; charset=utf-8"},
		"X-Shopify-Api-Version": {Version}}
	maps.Copy(h, a.header)
	f.SendResponse(w, r, fault, 0, a.status, h, a.body)
}

func (f *Fake) respond(r *http.Request, fault Fault) response {
	path, ok := strings.CutPrefix(r.URL.Path, "/admin/api/"+Version+"/")
	graph := path == "graphql.json" && r.Method == http.MethodPost
	c := &call{fake: f, now: f.now() - f.RandomUpTo(f.options.Faults.Lag), expired: fault == CursorExpired}
	switch {
	case r.Header.Get("X-Shopify-Access-Token") != Key || f.options.Faults.Revoked:
		return response{status: http.StatusUnauthorized,
			body: []byte(`{"errors":"[API] Invalid API key or access token (unrecognized login or wrong password)"}`)}
	case fault == ServerError:
		return response{status: http.StatusBadGateway, body: []byte(`<html>Bad Gateway</html>`)}
	case !ok:
		return notFound
	case graph && fault == Throttled:
		return c.errorResponse(1000, &graphError{code: "THROTTLED", message: "Throttled"})
	case graph:
		return c.graph(r)
	case r.Method != http.MethodGet:
		return notFound
	case fault == Throttled || !f.calls.take(1):
		return response{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"1.0"}},
			body: []byte(`{"errors":"Exceeded 2 calls per second for api client. ` +
				`Reduce request rates to resume uninterrupted service."}`)}
	}
	a := c.rest(r, strings.Split(path, "/"))
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set("X-Shopify-Shop-Api-Call-Limit", fmt.Sprintf("%.0f/%.0f", f.calls.capacity-f.calls.refill(),
		f.calls.capacity))
	return a
}

// hasScope reports whether the key has a scope.
func (c *call) hasScope(scope string) bool {
	return c.fake.options.Scopes == nil || slices.Contains(c.fake.options.Scopes, scope)
}

// isHidden reports whether the key does not see an object: an old order, or a hidden object.
func (c *call) isHidden(o *object) bool {
	return o.hidden || o.kind.name == "order" && !c.hasScope("read_all_orders") &&
		o.history[0].at < c.now-orderRetention.Microseconds()
}

func scopes() (out []string) {
	for _, k := range allKinds() {
		if !slices.Contains(out, k.scope) {
			out = append(out, k.scope)
		}
	}
	return out
}

// Requests returns all requests since the start or the last ResetRequests.
func (f *Fake) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// ResetRequests deletes the recorded requests.
func (f *Fake) ResetRequests() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}
