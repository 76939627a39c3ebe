package stripefake

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/url"
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
	fake    *Fake
	account *account
	key     string
	version string // of the API
	query   url.Values
	// now is the time on the account's clock of the state that the response shows.
	now int64
	// expired: every cursor is invalid.
	expired bool
}

// ServeHTTP serves a request as Stripe's API does, with its fault.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, fault := f.handle(r)
	f.write(w, r, a, fault)
}

// handle records a request and makes its response.
func (f *Fake) handle(r *http.Request) (response, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.recordRequest(r)
	fault := f.fault(r)
	a := f.respond(r, one, fault)
	one.Status = a.status
	return a, fault
}

// respond makes the response. The request is executed even if the response is lost.
func (f *Fake) respond(r *http.Request, one *Request, fault Fault) response {
	if a, failed := f.failed(fault); failed {
		return a
	}
	a, fail := f.authorize(r)
	if fail != nil {
		return fail.response()
	}
	c := &call{fake: f, account: a, key: key(r), version: r.Header.Get("Stripe-Version"), query: r.URL.Query(),
		now: f.now(), expired: fault == CursorExpired}
	if c.version == "" {
		c.version = Version
	}
	c.showOlderState(f.options.Faults.Lag)
	body, fail := c.route(strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/"), r)
	if fail != nil {
		return fail.response()
	}
	return response{status: http.StatusOK, header: http.Header{"Stripe-Version": {c.version}}, body: body}
}

// write sends the response as far as the fault allows.
func (f *Fake) write(w http.ResponseWriter, r *http.Request, a response, fault Fault) {
	slow, skew, ahead := f.responseTiming()
	h := http.Header{"Content-Type": {"application/json"}, "Date": {f.Date(skew, ahead)}}
	maps.Copy(h, a.header)
	f.SendResponse(w, r, fault, slow, a.status, h, a.body)
}

// showOlderState makes the response up to the given age old.
func (c *call) showOlderState(longest time.Duration) {
	c.now -= c.fake.RandomUpTo(longest)
}

// key returns the key of a request: a bearer token, or the user of a basic authorization.
func key(r *http.Request) string {
	if user, _, ok := r.BasicAuth(); ok {
		return user
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

// authorize returns the account of a request.
func (f *Fake) authorize(r *http.Request) (*account, *apiError) {
	k := key(r)
	_, restricted := f.options.Restricted[k]
	switch {
	case k == "":
		return nil, &apiError{status: http.StatusUnauthorized, Message: "You did not provide an API key. You need to " +
			"provide your API key in the Authorization header, using Bearer auth"}
	case f.options.Faults.Revoked:
		return nil, &apiError{status: http.StatusUnauthorized, Code: "api_key_expired",
			Message: "Expired API Key provided: " + k[:min(len(k), 7)] + "****"}
	case k != Key && !restricted:
		return nil, &apiError{status: http.StatusUnauthorized, Message: "Invalid API Key provided: " +
			k[:min(len(k), 7)] + "****"}
	}
	name := r.Header.Get("Stripe-Account")
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		name = r.Header.Get("Stripe-Context")
	}
	a := f.account(name)
	if a == nil || slices.Contains(f.options.Faults.Disconnected, a.id) {
		return nil, &apiError{status: http.StatusForbidden, Code: "account_invalid",
			Message: fmt.Sprintf("The provided key does not have access to account '%s' (or that account does not "+
				"exist). Application access may have been revoked.", name)}
	}
	if f.options.Faults.SeesNothing {
		return &account{id: a.id}, nil
	}
	return a, nil
}

// requireAccess returns an error if the key may not read a resource.
func (c *call) requireAccess(resource string) *apiError {
	allowed, restricted := c.fake.options.Restricted[c.key]
	if !restricted || slices.Contains(allowed, resource) {
		return nil
	}
	return &apiError{status: http.StatusForbidden, Code: "more_permissions_required",
		Message: fmt.Sprintf("The provided key does not have the required permissions for this endpoint: it may not "+
			"read %s.", resource)}
}

// route serves a request by the parts of its path.
func (c *call) route(path []string, r *http.Request) ([]byte, *apiError) {
	unknown := &apiError{status: http.StatusNotFound, Message: fmt.Sprintf("Unrecognized request URL (%s: %s).",
		r.Method, r.URL.Path)}
	if r.Method != http.MethodGet || len(path) < 2 {
		return nil, unknown
	}
	switch {
	case path[0] == "v2" && path[1] == "core":
		return c.routeV2(path[2:], unknown)
	case path[0] != "v1":
		return nil, unknown
	}
	if fail := c.requireAccess(path[1]); fail != nil {
		return nil, fail
	}
	k, rest := kindOfPath(path[1:])
	switch {
	case path[1] == "account" && len(path) == 2:
		return c.accountObject()
	case path[1] == "accounts" && len(path) > 2:
		return c.connectedAccount(path[2:], unknown)
	case path[1] == "balance" && len(path) == 2:
		return c.staticObject(tree{"object": "balance", "available": []any{}, "pending": []any{},
			"livemode": c.fake.options.LiveMode})
	case path[1] == "events" && len(path) == 2:
		return c.listEvents()
	case path[1] == "events" && len(path) == 3:
		return c.getEvent(path[2], false)
	case k == nil:
		return nil, unknown
	case len(rest) == 0:
		return c.list(k)
	case len(rest) == 1:
		return c.get(k, rest[0])
	}
	return c.listOrGetChild(k.plural, rest[0], rest[1:], unknown)
}

// kindOfList returns the kind of a plural, or nil. The v2 API has its own kinds.
func kindOfList(plural string, idOnly bool) *kind {
	for _, k := range allKinds() {
		if k.plural == plural && k.idOnly == idOnly {
			return k
		}
	}
	return nil
}

// staticObject returns an object that each account has once. Clients use it to check a key.
func (c *call) staticObject(one tree) ([]byte, *apiError) {
	if fail := c.allowParameters(); fail != nil {
		return nil, fail
	}
	return text(one), nil
}

// linkEnd is the end of a link to a page of Stripe. Each response ends it differently, because the
// token of such a link contains the time of the response.
const linkEnd = `?s=0"`

// renderBody returns the body of an object in the requested version, with new links.
func (c *call) renderBody(body []byte) []byte {
	if bytes.Contains(body, []byte(linkEnd)) {
		c.fake.linkCount++
		body = bytes.ReplaceAll(body, []byte(linkEnd), fmt.Appendf(nil, `?s=%d"`, c.fake.linkCount))
	}
	if body == nil || c.version == Version {
		return body
	}
	return fmt.Appendf(nil, `{"rendered_in":%q,%s`, c.version, body[1:])
}

// get returns an object. Some types return a stub for a deleted object.
func (c *call) get(k *kind, id string) ([]byte, *apiError) {
	var may []string
	if k.idOnly {
		may = []string{"include["}
	}
	if fail := c.allowParameters(may...); fail != nil {
		return nil, fail
	}
	o := c.account.objects[id]
	if o == nil || o.kind != k {
		return nil, notFound(k, id)
	}
	switch r, there := o.revisionAt(c.now); {
	case !there || r.body == nil && !k.deletedStub || !o.isVisible(c.now):
		return nil, notFound(k, id)
	case r.body == nil:
		return text(tree{"id": id, "object": k.name, "deleted": true}), nil
	default:
		return c.addChildLists(k, c.renderBody(c.includeRequested(k, r.body))), nil
	}
}

func (c *call) getEvent(id string, idOnly bool) ([]byte, *apiError) {
	if fail := c.allowParameters(); fail != nil {
		return nil, fail
	}
	if e := c.account.eventsByID[id]; e != nil && e.object.kind.idOnly == idOnly && e.isListed(c.now) {
		return e.apiBody(), nil
	}
	return nil, notFound(&kind{name: "event", idOnly: idOnly}, id)
}
