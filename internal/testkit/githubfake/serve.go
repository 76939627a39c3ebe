package githubfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// answer is what the API says to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// refusal is GitHub's shape of what is not given.
func refusal(status int, message string) answer {
	return answer{status: status, body: encode(tree{"message": message, "documentation_url": "https://docs.github.com/rest", "status": fmt.Sprint(status)})}
}

var missing = refusal(http.StatusNotFound, "Not Found")

// call is a request that was let in.
type call struct {
	*Fake
	method string
	key    string
	query  url.Values
	// at is the time whose state is answered.
	at int64
	// expired: the cursor is no longer known, whatever it is.
	expired bool
}

// ServeHTTP answers a request as GitHub's API does, after what its fault demands.
func (f *Fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.options.Meanwhile != nil {
		f.options.Meanwhile()
	}
	a, fault := f.take(r)
	f.Send(w, r, fault, 0, a.status, a.header, a.body)
}

// take counts a request and makes its answer.
func (f *Fake) take(r *http.Request) (answer, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fault, limits := f.fault(r), f.hourly()
	a, failed := f.failed(fault)
	if !failed {
		a = f.respond(r, fault)
	}
	header := http.Header{"Content-Type": {"application/json; charset=utf-8"}, "Date": {f.Date(f.options.Faults.Skew, 0)}}
	maps.Copy(header, limits)
	maps.Copy(header, a.header)
	a.header = header
	return a, fault
}

func (f *Fake) respond(r *http.Request, fault Fault) answer {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case key != Key && key != WriteKey, f.options.Faults.Revoked:
		return refusal(http.StatusUnauthorized, "Bad credentials")
	case r.Header.Get("X-GitHub-Api-Version") != "2022-11-28" || r.Header.Get("Accept") != "application/vnd.github+json":
		return refusal(http.StatusBadRequest, "no version of the API, or another media type")
	}
	c := &call{Fake: f, method: r.Method, key: key, query: r.URL.Query(), at: f.now() - f.UpTo(f.options.Faults.Lag), expired: fault == Expired}
	if r.URL.Path == "/" {
		return answer{status: http.StatusOK, body: encode(tree{"current_user_url": f.URL + "/user"})}
	}
	return c.route(strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/"))
}

// route answers by the parts of the path: repos/OWNER/NAME/..., or repositories/ID/... where a redirect has led.
func (c *call) route(path []string) answer {
	var to *repo
	var rest []string
	switch {
	case len(path) >= 3 && path[0] == "repos":
		to, rest = c.named(path[1]+"/"+path[2]), path[3:]
		if to != nil && !strings.EqualFold(to.fullName(), path[1]+"/"+path[2]) {
			return c.moved(to, strings.Join(append([]string{""}, rest...), "/"))
		}
	case len(path) >= 2 && path[0] == "repositories":
		to, rest = c.numbered(path[1]), path[2:]
	}
	if to == nil || to.self.gone() || c.options.Faults.Blind {
		return missing
	}
	if a, shut := c.closed(to); shut {
		return a
	}
	return c.within(to, rest)
}

// named is the repository that has, or had, a name.
func (c *call) named(fullName string) (old *repo) {
	for _, r := range c.repos {
		if strings.EqualFold(r.fullName(), fullName) {
			return r
		}
		for _, s := range r.self.states {
			if s.body["full_name"] == fullName {
				old = r
			}
		}
	}
	return old
}

func (c *call) numbered(id string) *repo {
	for _, r := range c.repos {
		if fmt.Sprint(r.self.id) == id {
			return r
		}
	}
	return nil
}

func (c *call) moved(to *repo, below string) answer {
	a := refusal(http.StatusMovedPermanently, "Moved Permanently")
	a.header = http.Header{"Location": {fmt.Sprintf("%s/repositories/%d%s?%s", c.URL, to.self.id, below, c.query.Encode())}}
	return a
}

// within answers what is below a repository.
func (c *call) within(r *repo, path []string) answer {
	below := strings.Join(append([]string{""}, path...), "/")
	switch {
	case len(path) >= 3 && path[0] == "hooks" && path[1] == fmt.Sprint(r.hook) && path[2] == "deliveries":
		return c.deliveries(r, path[3:])
	case c.method != http.MethodGet:
		return missing
	case listed[below] != nil:
		return c.list(r, below)
	}
	for _, o := range c.all {
		if o.repo == r && o.below == below {
			return c.get(o)
		}
	}
	return missing
}

// get answers an object: 301 where an issue was transferred, 410 where it was deleted.
func (c *call) get(o *object) answer {
	body := o.at(c.at)
	switch {
	case body != nil && c.hides(o, body):
		return missing
	case body != nil:
		return answer{status: http.StatusOK, body: encode(shownByAPI(o.kind, body))}
	case o.moved != nil && o.gone():
		a := refusal(http.StatusMovedPermanently, "Moved Permanently")
		a.header = http.Header{"Location": {c.address(o.moved.repo, o.moved.below)}}
		return a
	case o.kind == "issue" && o.gone():
		return refusal(http.StatusGone, "This issue was deleted")
	}
	return missing
}

// hides: drafts are shown to those alone who may write, and what is away to nobody.
func (c *call) hides(o *object, body tree) bool {
	return c.away[fmt.Sprint(o.id)] || body["draft"] == true && body["tag_name"] != nil && c.key != WriteKey
}

// shownByAPI is an object as the API alone shows it.
func shownByAPI(kind string, body tree) tree {
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

// deliveries answers below a webhook.
func (c *call) deliveries(r *repo, path []string) answer {
	if len(path) == 0 && c.method == http.MethodGet {
		return c.listDeliveries(r)
	}
	var one *attempt
	for _, a := range c.sent {
		if len(path) > 0 && a.hook == r.hook && fmt.Sprint(a.id) == path[0] && a.at >= c.now()-kept {
			one = a
		}
	}
	switch {
	case one == nil:
		return missing
	case len(path) == 1 && c.method == http.MethodGet && !c.withheld[one.guid]:
		body, err := json.MarshalIndent(one.whole(c.signedAt(one)), "", " ")
		if err != nil {
			panic(err) // it was encoded here
		}
		return answer{status: http.StatusOK, body: body}
	case len(path) == 2 && path[1] == "attempts" && c.method == http.MethodPost:
		return c.redeliver(one)
	}
	return missing
}

// redeliver sends an event again under its id, for a key that may write webhooks.
func (c *call) redeliver(one *attempt) answer {
	if c.key != WriteKey {
		a := refusal(http.StatusForbidden, "Resource not accessible by personal access token")
		a.header = http.Header{"X-Accepted-Github-Permissions": {"repository_hooks=write"}}
		return a
	}
	again := *one
	again.again, again.due = true, c.now()
	c.queue = append(c.queue, &again)
	return answer{status: http.StatusAccepted, body: []byte(`{}`)}
}
