package githubfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// response is a response of the API.
type response struct {
	status int
	header http.Header
	body   []byte
}

// errorResponse returns an error in GitHub's format.
func errorResponse(status int, message string) response {
	return response{status: status,
		body: encode(tree{"message": message, "documentation_url": "https://docs.github.com/rest",
			"status": fmt.Sprint(status)})}
}

var notFound = errorResponse(http.StatusNotFound, "Not Found")

// call is an authorized request.
type call struct {
	*Fake
	method string
	key    string
	query  url.Values
	// at is the time of the state that the response shows.
	at int64
	// expired: every cursor is invalid.
	expired bool
}

// ServeHTTP serves a request as GitHub's API does, with its fault.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.options.BeforeRequest != nil {
		f.options.BeforeRequest()
	}
	a, fault := f.handle(r)
	f.SendResponse(w, r, fault, 0, a.status, a.header, a.body)
}

// handle counts a request and makes its response.
func (f *Fake) handle(r *http.Request) (response, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault, limits := f.fault(r), f.countCall()
	a, failed := f.failed(fault)
	if !failed {
		a = f.respond(r, fault)
	}
	header := http.Header{"Content-Type": {"application/json; charset=utf-8"},
		"Date": {f.Date(f.options.Faults.DateSkew, 0)}}
	maps.Copy(header, limits)
	maps.Copy(header, a.header)
	a.header = header
	return a, fault
}

func (f *Fake) respond(r *http.Request, fault Fault) response {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case key != Key && key != WriteKey, f.options.Faults.Revoked:
		return errorResponse(http.StatusUnauthorized, "Bad credentials")
	case r.Header.Get("X-GitHub-Api-Version") != "2022-11-28" ||
		r.Header.Get("Accept") != "application/vnd.github+json":
		return errorResponse(http.StatusBadRequest, "no version of the API, or another media type")
	}
	c := &call{Fake: f, method: r.Method, key: key, query: r.URL.Query(),
		at:      f.now() - f.RandomUpTo(f.options.Faults.Lag),
		expired: fault == CursorExpired}
	if r.URL.Path == "/" {
		return response{status: http.StatusOK, body: encode(tree{"current_user_url": f.URL + "/user"})}
	}
	return c.route(strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/"))
}

// route serves a request by the parts of its path: repos/OWNER/NAME/..., or repositories/ID/...
// after a redirect.
func (c *call) route(path []string) response {
	var to *repo
	var rest []string
	switch {
	case len(path) >= 3 && path[0] == "repos":
		to, rest = c.repositoryByName(path[1]+"/"+path[2]), path[3:]
		if to != nil && !strings.EqualFold(to.fullName(), path[1]+"/"+path[2]) {
			return c.redirect(to, strings.Join(append([]string{""}, rest...), "/"))
		}
	case len(path) >= 2 && path[0] == "repositories":
		to, rest = c.repositoryByID(path[1]), path[2:]
	}
	if to == nil || to.object.isDeleted() || c.options.Faults.SeesNothing {
		return notFound
	}
	if a, shut := c.repositoryResponse(to); shut {
		return a
	}
	return c.routeInRepository(to, rest)
}

// repositoryByName returns the repository that has, or had, a name.
func (c *call) repositoryByName(fullName string) (old *repo) {
	for _, r := range c.repos {
		if strings.EqualFold(r.fullName(), fullName) {
			return r
		}
		for _, s := range r.object.states {
			if s.body["full_name"] == fullName {
				old = r
			}
		}
	}
	return old
}

func (c *call) repositoryByID(id string) *repo {
	for _, r := range c.repos {
		if fmt.Sprint(r.object.id) == id {
			return r
		}
	}
	return nil
}

func (c *call) redirect(to *repo, below string) response {
	a := errorResponse(http.StatusMovedPermanently, "Moved Permanently")
	a.header = http.Header{"Location": {fmt.Sprintf("%s/repositories/%d%s?%s", c.URL, to.object.id, below,
		c.query.Encode())}}
	return a
}

// routeInRepository serves a request below a repository.
func (c *call) routeInRepository(r *repo, path []string) response {
	below := strings.Join(append([]string{""}, path...), "/")
	switch {
	case len(path) >= 3 && path[0] == "hooks" && path[1] == fmt.Sprint(r.hook) && path[2] == "deliveries":
		return c.deliveries(r, path[3:])
	case c.method != http.MethodGet:
		return notFound
	case kindsOfList[below] != nil:
		return c.list(r, below)
	}
	for _, o := range c.objects {
		if o.repo == r && o.path == below {
			return c.get(o)
		}
	}
	return notFound
}

// get returns an object: 301 for a transferred issue, 410 for a deleted one.
func (c *call) get(o *object) response {
	body := o.stateAt(c.at)
	switch {
	case body != nil && c.isHidden(o, body):
		return notFound
	case body != nil:
		return response{status: http.StatusOK, body: encode(apiBody(o.kind, body))}
	case o.transferredTo != nil && o.isDeleted():
		a := errorResponse(http.StatusMovedPermanently, "Moved Permanently")
		a.header = http.Header{"Location": {c.address(o.transferredTo.repo, o.transferredTo.path)}}
		return a
	case o.kind == "issue" && o.isDeleted():
		return errorResponse(http.StatusGone, "This issue was deleted")
	}
	return notFound
}

// isHidden reports whether the key does not see an object: a draft without write access, or a
// hidden object.
func (c *call) isHidden(o *object, body tree) bool {
	return c.hidden[fmt.Sprint(o.id)] || body["draft"] == true && body["tag_name"] != nil && c.key != WriteKey
}

// apiBody returns an object with the fields that only the API contains.
func apiBody(kind string, body tree) tree {
	shown := maps.Clone(body)
	switch kind {
	case "issue":
		shown["closed_by"] = user()
	case "pull_request_review_comment":
		shown["line"], shown["commit_id"] = 7, "2e"
	case "repository":
		shown["permissions"], shown["network_count"] = tree{"pull": true}, 2
	case "pull_request":
		shown["mergeable"], shown["mergeable_state"] = true, "clean"
	}
	return shown
}

// deliveries serves requests below a webhook.
func (c *call) deliveries(r *repo, path []string) response {
	if len(path) == 0 && c.method == http.MethodGet {
		return c.listDeliveries(r)
	}
	var one *attempt
	for _, a := range c.sent {
		if len(path) > 0 && a.hook == r.hook && fmt.Sprint(a.id) == path[0] && a.at >= c.now()-deliveryRetention {
			one = a
		}
	}
	switch {
	case one == nil:
		return notFound
	case len(path) == 1 && c.method == http.MethodGet && !c.withheld[one.guid]:
		body, err := json.MarshalIndent(one.details(c.signedAt(one)), "", " ")
		if err != nil {
			panic(err) // it was encoded here
		}
		return response{status: http.StatusOK, body: body}
	case len(path) == 2 && path[1] == "attempts" && c.method == http.MethodPost:
		return c.redeliver(one)
	}
	return notFound
}

// redeliver sends an event again with its id, for a key that may write webhooks.
func (c *call) redeliver(one *attempt) response {
	if c.key != WriteKey {
		a := errorResponse(http.StatusForbidden, "Resource not accessible by personal access token")
		a.header = http.Header{"X-Accepted-Github-Permissions": {"repository_hooks=write"}}
		return a
	}
	again := *one
	again.redelivery = true
	c.queue.Add(&again, c.now())
	return response{status: http.StatusAccepted, body: []byte(`{}`)}
}
