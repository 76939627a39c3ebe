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

// intParameter returns a positive integer parameter or its default.
func (c *call) intParameter(name string, otherwise int) int {
	if n, err := strconv.Atoi(c.query.Get(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// pageSize returns the page size of the request.
func (c *call) pageSize() int { return min(c.intParameter("per_page", 30), 100) }

// nextPageHeader returns the header of a page that another page follows.
func (c *call) nextPageHeader(path, name, value string) http.Header {
	query := c.query
	query.Set(name, value)
	return http.Header{"Link": {fmt.Sprintf(`<%s%s?%s>; rel="next", <%s%s?page=99>; rel="last"`, c.URL, path,
		query.Encode(), c.URL, path)}}
}

// listDeliveries lists the deliveries of a webhook, newest first.
func (c *call) listDeliveries(r *repo) response {
	before := int64(1) << 62
	if cursor := c.query.Get("cursor"); cursor != "" {
		id, err := strconv.ParseInt(strings.TrimPrefix(cursor, "v1_"), 10, 64)
		if err != nil || c.expired {
			return errorResponse(http.StatusUnprocessableEntity, "Invalid cursor")
		}
		before = id
	}
	list := []tree{}
	a := response{status: http.StatusOK}
	for _, one := range slices.Backward(c.sent) {
		if one.hook != r.hook || one.id >= before || one.at < c.now()-deliveryRetention || one.listedAt > c.now() {
			continue
		}
		if len(list) == c.pageSize() {
			a.header = c.nextPageHeader(fmt.Sprintf("/repos/%s/hooks/%d/deliveries", r.fullName(), r.hook), "cursor",
				fmt.Sprintf("v1_%v", list[len(list)-1]["id"]))
			break
		}
		list = append(list, one.summary())
	}
	a.body = encode(list)
	return a
}

// kindsOfList are the kinds of each list.
var kindsOfList = map[string][]string{"/issues": {"issue", "pull_request"}, "/pulls": {"pull_request"},
	"/releases": {"release"}, "/issues/comments": {"issue_comment"},
	"/milestones": {"milestone"}, "/deployments": {"deployment"}, "/comments": {"commit_comment"},
	"/pulls/comments": {"pull_request_review_comment"}}

// list lists objects at the time of the call.
func (c *call) list(r *repo, below string) response {
	kinds := kindsOfList[below]
	var list []tree
	c.at -= c.RandomUpTo(c.options.Faults.ListLag)
	for _, o := range c.objects {
		if body := o.stateAt(c.at); o.repo == r && slices.Contains(kinds, o.kind) && body != nil &&
			c.matchesQuery(body) && !c.isHidden(o, body) {
			list = append(list, listBody(below, o, body))
		}
	}
	c.sort(below, list)
	size, page := c.pageSize(), c.intParameter("page", 1)
	if most := c.options.MaxListedReleases; most > 0 && below == "/releases" && (page-1)*size >= most {
		if status := c.options.ReleasesEndStatus; status != 0 {
			return errorResponse(status, "Server Error")
		}
		return errorResponse(http.StatusUnprocessableEntity, fmt.Sprintf("Only the first %d results are available.",
			most))
	}
	from, to := min((page-1)*size, len(list)), min(page*size, len(list))
	a := response{status: http.StatusOK, body: encode(append([]tree{}, list[from:to]...))}
	if to < len(list) {
		a.header = c.nextPageHeader("/repos/"+r.fullName()+below, "page", fmt.Sprint(page+1))
	}
	return a
}

// matchesQuery reports whether an object has the requested time and state. Without a requested
// state only open objects match.
func (c *call) matchesQuery(body tree) bool {
	if since, err := time.Parse(time.RFC3339, c.query.Get("since")); err == nil {
		if at, _ := time.Parse(time.RFC3339, fmt.Sprint(body["updated_at"])); at.Before(since) ||
			c.options.SinceIsExclusive && at.Equal(since) {
			return false
		}
	}
	now, stateful := body["state"]
	return !stateful || c.query.Get("state") == "all" || now == cmp.Or(c.query.Get("state"), "open")
}

// listBody returns an object as a list shows it: pull requests without their counts, and in the
// list of issues with another id.
func listBody(below string, o *object, body tree) tree {
	shown := apiBody(o.kind, body)
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

// sort sorts as requested. The default is newest first.
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

// signedAt returns the request of an attempt. The caller holds the lock of the fake.
func (c *call) signedAt(a *attempt) *provider.Delivery { return sign(a, time.UnixMicro(a.at)) }
