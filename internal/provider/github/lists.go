package github

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// listLag is how old a list may be. GitHub documents none.
const listLag = 10 * time.Second

// list is how a repository's objects of a type are listed.
type list struct {
	// path follows the repository's.
	path string
	// query are the parameters that every page has.
	query url.Values
	// byChange: sorted by updated_at and asked for by since. Else by page, in the order of creation.
	byChange bool
	// whole: what is listed is in the shape that GET answers with.
	whole bool
	// skip: what has this member is no object of the type.
	skip string
	// fixed: no object ever moves to another page, since none is deleted and their order never changes.
	fixed bool
}

// lists are by type. Issues and comments are paged by time: each page begins at the updated_at of the last one's end, so that nothing which is changed or
// deleted meanwhile moves another object out of sight, but where more than a page changed in one second, whose pages are counted. Pull requests are never deleted, so the page of one, in the order of creation, never
// changes. Of releases, deployments and comments on commits a delete moves the later ones to the page before, and of more
// than 100 milestones another due date moves one: provider.NextCounted reads pages again until nothing moves.
//
// Not listed are workflow and check runs: GitHub lists the first whole or by their time of creation alone and deletes them of itself, and the others below a commit. Nor are labels: the address of one is its
// name, so that none could be believed to be missing.
var lists = map[string]list{
	"repository": {whole: true},
	"issue": {path: "/issues", query: url.Values{"state": {"all"}, "sort": {"updated"}, "direction": {"asc"}}, byChange: true, whole: true,
		skip: "pull_request"}, // GitHub lists pull requests among them, under other ids
	"issue_comment":               {path: "/issues/comments", query: url.Values{"sort": {"updated"}, "direction": {"asc"}}, byChange: true, whole: true},
	"pull_request_review_comment": {path: "/pulls/comments", query: url.Values{"sort": {"updated"}, "direction": {"asc"}}, byChange: true, whole: true},
	"commit_comment":              {path: "/comments", whole: true},
	"milestone":                   {path: "/milestones", query: url.Values{"state": {"all"}}, whole: true},
	"deployment":                  {path: "/deployments", whole: true},
	"pull_request":                {path: "/pulls", query: url.Values{"state": {"all"}, "sort": {"created"}, "direction": {"asc"}}, fixed: true}, // listed without its counts
	"release":                     {path: "/releases", whole: true},
}

// Lists are of the repositories that the source's section api names.
func (GitHub) Lists(_ *provider.Source, api *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	if len(api.Repositories) == 0 || account != "" { // the mirror keeps all under ""
		return out
	}
	for objectType, l := range lists {
		out[objectType] = provider.List{ByChange: l.byChange, Lag: listLag, Sparse: l.skip != "", Blind: !l.whole && rowOf(objectType).still}
	}
	return out
}

// ListObjects lists a repository after the other.
func (GitHub) ListObjects(_ *provider.Source, api *provider.API, _, objectType string, since, _ time.Time, cursor string) provider.Call {
	page, _ := provider.CountedPage(cursor)
	l, at := lists[objectType], readSpot(api, page)
	if at.since != asked {
		since = timeOf(at.since)
	}
	c := provider.Call{Path: "/repos/" + at.repository + l.path}
	if l.path == "" {
		return c
	}
	c.Query = url.Values{"per_page": {pageSize}, "page": {strconv.Itoa(at.page)}}
	for name, values := range l.query {
		c.Query[name] = values
	}
	if l.byChange && !since.IsZero() {
		// GitHub does not say whether what changed at that time itself is listed: a second earlier, it is.
		c.Query.Set("since", since.UTC().Truncate(time.Second).Add(-time.Second).Format(time.RFC3339))
	}
	return c
}

// spot is a place in a list of several repositories: a page, counted from 1, of what changed since a time, in microseconds; asked is the time that the list was asked since.
type spot struct {
	repository string
	page       int
	since      int64
}

const asked = -1

func (s spot) String() string { return fmt.Sprintf("%s %d %d", s.repository, s.page, s.since) }

// readSpot reads a cursor; the empty one is the beginning of the first repository.
func readSpot(api *provider.API, cursor string) spot {
	s := spot{page: 1, since: asked}
	if cursor != "" {
		_, _ = fmt.Sscanf(cursor, "%s %d %d", &s.repository, &s.page, &s.since)
	} else if len(api.Repositories) > 0 {
		s.repository = api.Repositories[0]
	}
	return s
}

// ObjectPage splits a page. The cursor of the next one is in the same repository where the page's Link says that there is more.
func (GitHub) ObjectPage(_ *provider.Source, api *provider.API, _, objectType, cursor string, header http.Header, body []byte) (page []provider.Listed, next string, err error) {
	here, _ := provider.CountedPage(cursor)
	l, at := lists[objectType], readSpot(api, here)
	members := []json.RawMessage{body}
	if l.path != "" {
		members = nil
		if err := json.Unmarshal(body, &members); err != nil {
			return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
		}
	}
	last, ids := int64(0), make([]string, 0, len(members))
	for _, raw := range members {
		one, id, changed, err := l.read(objectType, raw)
		if err != nil {
			return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
		}
		ids = append(ids, id)
		if last = max(last, changed); one != nil {
			page = append(page, *one)
		}
	}
	more := l.path != "" && len(following(header)) > 0
	after := l.after(api, at, more, last)
	if l.fixed {
		return page, after, nil
	}
	counts := func(cursor string) bool { return readSpot(api, cursor).page > 1 }
	next, err = provider.NextCounted(cursor, after, ids, counts)
	switch {
	case err != nil && l.byChange: // each change moves an object of such a list, so a busy one never stands still
		return page, after, nil
	case err != nil:
		return nil, "", fmt.Errorf("read list of %s: %w", objectType, err)
	}
	return page, next, nil
}

// read reads a member of a page, nil where it is of another type; changed is its updated_at, 0 where it has none.
func (l list) read(objectType string, raw []byte) (one *provider.Listed, id string, changed int64, err error) {
	v, err := canonical.Parse(raw)
	if err != nil {
		return nil, "", 0, err
	}
	defer v.Release()
	id = number(v.Get("id"))
	if id == "" {
		return nil, "", 0, errors.New("a member has no id")
	}
	changed, ok := readTime(v.Get("updated_at"))
	switch {
	case l.skip != "" && has(v, l.skip):
		return nil, id, changed, nil
	case l.whole:
		return &provider.Listed{ObjectID: id, Body: raw}, id, changed, nil
	}
	return &provider.Listed{ObjectID: id, At: changed, HasAt: ok, Known: raw}, id, changed, nil
}

// after is the cursor of the page after one, "" behind the last repository. A list by time goes on at the last time of the page, which it tells again, with the second before it. Where that is not past the time
// that the page began at, more objects than a page holds changed within these two seconds, and it goes on by page until it is past them: only there a change or a delete could hide another object.
func (l list) after(api *provider.API, at spot, more bool, last int64) string {
	switch {
	case more && l.byChange && last > at.since:
		return spot{at.repository, 1, last}.String()
	case more:
		return spot{at.repository, at.page + 1, at.since}.String()
	}
	return behind(api, at.repository)
}

// behind is the cursor of the repository that follows one, "" behind the last.
func behind(api *provider.API, repository string) string {
	if i := slices.Index(api.Repositories, repository); i >= 0 && i+1 < len(api.Repositories) {
		return spot{api.Repositories[i+1], 1, asked}.String()
	}
	return ""
}

// PartAt names the repository that a cursor is in.
func (GitHub) PartAt(api *provider.API, _, cursor string) (part string, begins bool, next string) {
	page, counted := provider.CountedPage(cursor)
	at := readSpot(api, page)
	return at.repository, at.page == 1 && at.since == asked && !counted, behind(api, at.repository)
}

// PartOf names the repository, as the source names it, below which a call reads.
func (GitHub) PartOf(api *provider.API, call provider.Call) string {
	m := owned.FindStringSubmatch(call.Path)
	if m == nil {
		return ""
	}
	for _, name := range api.Repositories {
		if strings.EqualFold(name, m[1]) {
			return name
		}
	}
	return ""
}
