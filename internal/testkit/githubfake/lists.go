package githubfake

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// number is a parameter, or what it is where it is left out.
func (c *call) number(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.query.Get(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// size is of a page.
func (c *call) size() int { return min(c.number("per_page", 30), 100) }

// next is the header of a page that another one follows.
func (c *call) next(path, name, value string) http.Header {
	query := c.query
	query.Set(name, value)
	return http.Header{"Link": {fmt.Sprintf(`<%s%s?%s>; rel="next", <%s%s?page=99>; rel="last"`, c.URL, path, query.Encode(), c.URL, path)}}
}

// listDeliveries lists what a webhook was sent, the newest first.
func (c *call) listDeliveries(r *repo) answer {
	before := int64(1) << 62
	if cursor := c.query.Get("cursor"); cursor != "" {
		id, err := strconv.ParseInt(strings.TrimPrefix(cursor, "v1_"), 10, 64)
		if err != nil || c.expired {
			return refusal(http.StatusUnprocessableEntity, "Invalid cursor")
		}
		before = id
	}
	list := []tree{}
	a := answer{status: http.StatusOK}
	for _, one := range slices.Backward(c.sent) {
		if one.hook != r.hook || one.id >= before || one.at < c.now()-kept || one.listed > c.now() {
			continue
		}
		if len(list) == c.size() {
			a.header = c.next(fmt.Sprintf("/repos/%s/hooks/%d/deliveries", r.fullName(), r.hook), "cursor", fmt.Sprintf("v1_%v", list[len(list)-1]["id"]))
			break
		}
		list = append(list, one.shown())
	}
	a.body = encode(list)
	return a
}

// listed are the kinds of each list.
var listed = map[string][]string{"/issues": {"issue", "pull_request"}, "/pulls": {"pull_request"}, "/releases": {"release"}, "/issues/comments": {"issue_comment"},
	"/milestones": {"milestone"}, "/deployments": {"deployment"}, "/comments": {"commit_comment"}, "/pulls/comments": {"pull_request_review_comment"}}

// list lists objects as they were at the call's time.
func (c *call) list(r *repo, below string) answer {
	kinds := listed[below]
	var list []tree
	c.at -= c.UpTo(c.options.Faults.ListLag)
	for _, o := range c.all {
		if body := o.at(c.at); o.repo == r && slices.Contains(kinds, o.kind) && body != nil && c.wanted(body) && !c.hides(o, body) {
			list = append(list, shownIn(below, o, body))
		}
	}
	c.sort(below, list)
	size, page := c.size(), c.number("page", 1)
	if most := c.options.Releases; most > 0 && below == "/releases" && (page-1)*size >= most {
		if status := c.options.ReleasesEnd; status != 0 {
			return refusal(status, "Server Error")
		}
		return refusal(http.StatusUnprocessableEntity, fmt.Sprintf("Only the first %d results are available.", most))
	}
	from, to := min((page-1)*size, len(list)), min(page*size, len(list))
	a := answer{status: http.StatusOK, body: encode(append([]tree{}, list[from:to]...))}
	if to < len(list) {
		a.header = c.next("/repos/"+r.fullName()+below, "page", fmt.Sprint(page+1))
	}
	return a
}

// wanted: it is of the time and the state that were asked for; without a state only what is open is.
func (c *call) wanted(body tree) bool {
	if since, err := time.Parse(time.RFC3339, c.query.Get("since")); err == nil {
		if at, _ := time.Parse(time.RFC3339, fmt.Sprint(body["updated_at"])); at.Before(since) || c.options.SinceAfter && at.Equal(since) {
			return false
		}
	}
	now, stateful := body["state"]
	return !stateful || c.query.Get("state") == "all" || now == cmp.Or(c.query.Get("state"), "open")
}

// shownIn is an object in a list: pull requests without their counts, and among issues under another id.
func shownIn(below string, o *object, body tree) tree {
	shown := shownByAPI(o.kind, body)
	switch {
	case below == "/issues" && o.kind == "pull_request":
		shown["id"] = o.id + 1_000_000_000
		shown["pull_request"] = tree{"url": body["url"]}
	case below == "/pulls":
		for _, field := range []string{"merged", "mergeable", "mergeable_state", "comments", "commits", "additions"} {
			delete(shown, field)
		}
	case below == "/issues":
		delete(shown, "closed_by")
	}
	return shown
}

// sort sorts as asked: the newest first where nothing else is said.
func (c *call) sort(below string, list []tree) {
	field := "created_at"
	if c.query.Get("sort") == "updated" && below != "/releases" {
		field = "updated_at"
	}
	slices.SortStableFunc(list, func(a, b tree) int { return cmp.Compare(fmt.Sprint(a[field]), fmt.Sprint(b[field])) })
	if c.query.Get("direction") != "asc" {
		slices.Reverse(list)
	}
}

// signedAt is the request that an attempt was made with; the fake is locked.
func (c *call) signedAt(a *attempt) *provider.Delivery { return sign(a, time.UnixMicro(a.at)) }
