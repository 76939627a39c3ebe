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

// answer is what the API says to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// call is a request that was let in.
type call struct {
	fake    *Fake
	account *account
	key     string
	version string // of the API
	query   url.Values
	// now is the time on the account's clock, as of the moment whose state is answered.
	now int64
	// expired: the cursor is no longer known, whatever it is.
	expired bool
}

// ServeHTTP answers a request as Stripe's API does, after what its fault demands.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.options.Meanwhile != nil {
		f.options.Meanwhile()
	}
	a, fault := f.take(r)
	defer f.done()
	f.write(w, r, a, fault)
}

// take counts a request and makes its answer.
func (f *Fake) take(r *http.Request) (answer, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.count(r)
	fault := f.fault(r, one)
	a := f.respond(r, one, fault)
	one.Status = a.status
	return a, fault
}

func (f *Fake) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inFlight--
}

// respond makes the answer; the work is done even where the answer will not arrive.
func (f *Fake) respond(r *http.Request, one *Request, fault Fault) answer {
	if a, failed := f.failed(fault, one.limited); failed {
		return a
	}
	a, fail := f.admit(r)
	if fail != nil {
		return fail.answer()
	}
	c := &call{fake: f, account: a, key: key(r), version: r.Header.Get("Stripe-Version"), query: r.URL.Query(), now: f.now(), expired: fault == Expired}
	if c.version == "" {
		c.version = f.options.Default
	}
	c.lag(f.options.Faults.Lag)
	body, fail := c.route(strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/"), r)
	if fail != nil {
		return fail.answer()
	}
	return answer{status: http.StatusOK, header: http.Header{"Stripe-Version": {c.version}}, body: body}
}

// write sends the answer, as far as the fault lets it.
func (f *Fake) write(w http.ResponseWriter, r *http.Request, a answer, fault Fault) {
	slow, skew, ahead := f.slowness()
	h := http.Header{"Content-Type": {"application/json"}, "Date": {f.Date(skew, ahead)}}
	maps.Copy(h, a.header)
	f.Send(w, r, fault, slow, a.status, h, a.body)
}

// lag lets the answer be up to so old.
func (c *call) lag(longest time.Duration) {
	c.now -= c.fake.UpTo(longest)
}

// key is the key of a request: a bearer token, or the user of a basic authorization.
func key(r *http.Request) string {
	if user, _, ok := r.BasicAuth(); ok {
		return user
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return token
}

// admit finds the account that a request is let in to.
func (f *Fake) admit(r *http.Request) (*account, *failure) {
	k := key(r)
	_, restricted := f.options.Restricted[k]
	switch {
	case k == "":
		return nil, &failure{status: http.StatusUnauthorized, Message: "You did not provide an API key. You need to provide your API key in the Authorization header, using Bearer auth"}
	case f.options.Faults.Revoked:
		return nil, &failure{status: http.StatusUnauthorized, Code: "api_key_expired", Message: "Expired API Key provided: " + k[:min(len(k), 7)] + "****"}
	case k != Key && !restricted:
		return nil, &failure{status: http.StatusUnauthorized, Message: "Invalid API Key provided: " + k[:min(len(k), 7)] + "****"}
	}
	name := r.Header.Get("Stripe-Account")
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		name = r.Header.Get("Stripe-Context")
	}
	a := f.account(name)
	if a == nil || slices.Contains(f.options.Faults.Disconnected, a.id) {
		return nil, &failure{status: http.StatusForbidden, Code: "account_invalid",
			Message: fmt.Sprintf("The provided key does not have access to account '%s' (or that account does not exist). Application access may have been revoked.", name)}
	}
	if f.options.Faults.Blind {
		return &account{id: a.id}, nil
	}
	return a, nil
}

// may tells whether the key may read a resource.
func (c *call) may(resource string) *failure {
	allowed, restricted := c.fake.options.Restricted[c.key]
	if !restricted || slices.Contains(allowed, resource) {
		return nil
	}
	return &failure{status: http.StatusForbidden, Code: "more_permissions_required",
		Message: fmt.Sprintf("The provided key does not have the required permissions for this endpoint: it may not read %s.", resource)}
}

// route answers by the parts of the path.
func (c *call) route(path []string, r *http.Request) ([]byte, *failure) {
	unknown := &failure{status: http.StatusNotFound, Message: fmt.Sprintf("Unrecognized request URL (%s: %s).", r.Method, r.URL.Path)}
	if r.Method != http.MethodGet || len(path) < 2 {
		return nil, unknown
	}
	switch {
	case path[0] == "v2" && path[1] == "core":
		return c.second(path[2:], unknown)
	case path[0] != "v1":
		return nil, unknown
	}
	if fail := c.may(path[1]); fail != nil {
		return nil, fail
	}
	k, rest := kindAt(path[1:])
	switch {
	case path[1] == "account" && len(path) == 2:
		return c.itself()
	case path[1] == "accounts" && len(path) > 2:
		return c.ofAccount(path[2:], unknown)
	case path[1] == "balance" && len(path) == 2:
		return c.control(tree{"object": "balance", "available": []any{}, "pending": []any{}, "livemode": c.fake.options.Live})
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
	return c.below(k.plural, rest[0], rest[1:], unknown)
}

// kindListed is the kind of a plural, nil where there is none; the second API has its own.
func kindListed(plural string, thin bool) *kind {
	for _, k := range allKinds() {
		if k.plural == plural && k.thin == thin {
			return k
		}
	}
	return nil
}

// control answers what there is one of in each account, which tells that a key is good.
func (c *call) control(one tree) ([]byte, *failure) {
	if fail := c.only(); fail != nil {
		return nil, fail
	}
	return text(one), nil
}

// linkEnd ends a link to a page of Stripe's own. Each answer ends it otherwise, as the token of such a link holds when it was rendered.
const linkEnd = `?s=0"`

// rendered is an object's body in the version that was asked for, with links of its own.
func (c *call) rendered(body []byte) []byte {
	if bytes.Contains(body, []byte(linkEnd)) {
		c.fake.links++
		body = bytes.ReplaceAll(body, []byte(linkEnd), fmt.Appendf(nil, `?s=%d"`, c.fake.links))
	}
	if body == nil || c.version == Version {
		return body
	}
	return fmt.Appendf(nil, `{"rendered_in":%q,%s`, c.version, body[1:])
}

// get answers an object. Of the deleted, some types leave a stub.
func (c *call) get(k *kind, id string) ([]byte, *failure) {
	var may []string
	if k.thin {
		may = []string{"include["}
	}
	if fail := c.only(may...); fail != nil {
		return nil, fail
	}
	o := c.account.objects[id]
	if o == nil || o.kind != k {
		return nil, missing(k, id)
	}
	switch r, there := o.at(c.now); {
	case !there || r.body == nil && !k.stub || !o.found(c.now):
		return nil, missing(k, id)
	case r.body == nil:
		return text(tree{"id": id, "object": k.name, "deleted": true}), nil
	default:
		return c.nested(k, c.rendered(c.asked(k, r.body))), nil
	}
}

func (c *call) getEvent(id string, thin bool) ([]byte, *failure) {
	if fail := c.only(); fail != nil {
		return nil, fail
	}
	if e := c.account.named[id]; e != nil && e.object.kind.thin == thin && e.shown(c.now) {
		return e.answer(), nil
	}
	return nil, missing(&kind{name: "event", thin: thin}, id)
}
