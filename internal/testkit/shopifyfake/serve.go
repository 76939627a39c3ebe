package shopifyfake

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// answer is what the API says to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call is a request that was let in.
type call struct {
	fake      *Fake
	now       int64 // the moment whose state is answered
	expired   bool  // the cursor is no longer known, whatever it is
	variables map[string]any
}

// Request is one request that the fake was asked.
type Request struct {
	At time.Time
	// Method and Path are as asked; of a query Path ends in graphql.json.
	Method, Path string
	Status       int
}

// ServeHTTP answers a request as Shopify does, after what its fault demands.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.options.Meanwhile != nil {
		f.options.Meanwhile()
	}
	f.mu.Lock()
	fault, skew := f.fault(r), f.options.Faults.Skew
	a := f.respond(r, fault)
	f.requests = append(f.requests, Request{At: time.Now(), Method: r.Method, Path: r.URL.Path, Status: a.status})
	f.mu.Unlock()
	h := http.Header{"Date": {f.Date(skew, 0)}, "Content-Type": {"application/json; charset=utf-8"}, "X-Shopify-Api-Version": {Version}}
	maps.Copy(h, a.header)
	f.Send(w, r, fault, 0, a.status, h, a.body)
}

func (f *Fake) respond(r *http.Request, fault Fault) answer {
	path, ok := strings.CutPrefix(r.URL.Path, "/admin/api/"+Version+"/")
	graph := path == "graphql.json" && r.Method == http.MethodPost
	c := &call{fake: f, now: f.now() - f.UpTo(f.options.Faults.Lag), expired: fault == Expired}
	switch {
	case r.Header.Get("X-Shopify-Access-Token") != Key || f.options.Faults.Revoked:
		return answer{status: http.StatusUnauthorized, body: []byte(`{"errors":"[API] Invalid API key or access token (unrecognized login or wrong password)"}`)}
	case fault == Broken:
		return answer{status: http.StatusBadGateway, body: []byte(`<html>Bad Gateway</html>`)}
	case !ok:
		return notFound
	case graph && fault == Throttled:
		return c.wrong(1000, &problem{code: "THROTTLED", message: "Throttled"})
	case graph:
		return c.graph(r)
	case r.Method != http.MethodGet:
		return notFound
	case fault == Throttled || !f.calls.take(1):
		return answer{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"1.0"}}, body: []byte(`{"errors":"Exceeded 2 calls per second for api client. Reduce request rates to resume uninterrupted service."}`)}
	}
	a := c.rest(r, strings.Split(path, "/"))
	if a.header == nil {
		a.header = http.Header{}
	}
	a.header.Set("X-Shopify-Shop-Api-Call-Limit", fmt.Sprintf("%.0f/%.0f", f.calls.most-f.calls.now(), f.calls.most))
	return a
}

// may tells whether the key has a scope.
func (c *call) may(scope string) bool {
	return c.fake.options.Scopes == nil || slices.Contains(c.fake.options.Scopes, scope)
}

// hidden tells whether the key does not see an object: an old order, or what is away.
func (c *call) hidden(o *object) bool {
	return o.away || o.kind.name == "order" && !c.may("read_all_orders") && o.history[0].at < c.now-old.Microseconds()
}

func scopes() (out []string) {
	for _, k := range everyKind() {
		if !slices.Contains(out, k.scope) {
			out = append(out, k.scope)
		}
	}
	return out
}

// Requests are all requests since the start or the last Forget.
func (f *Fake) Requests() []Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// Forget clears the requests.
func (f *Fake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}
