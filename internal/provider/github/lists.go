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

// list says how a repository's objects of a type are listed.
type list struct {
	// path follows the repository's path.
	path string
	// query are the parameters of every page.
	query url.Values
	// byChange means that the list is sorted by updated_at and limited by since. Otherwise it is
	// read by page number, in order of creation.
	byChange bool
	// wholeObjects means that the elements have the format of the response to GET.
	wholeObjects bool
	// skipMember is a member that only objects of another type have.
	skipMember string
	// stableOrder means that no object ever moves to another page: none is deleted, and the order
	// never changes.
	stableOrder bool
}

// lists are by type. Issues and comments are paged by time: each page begins at the updated_at of
// the last object before, so changes and deletes move no object past the cursor. Only if more
// objects than a page holds changed in one second, the pages are counted. Pull requests are never
// deleted, so their pages, in order of creation, never change. For releases, deployments and commit
// comments a delete moves the later ones to the page before. Milestones are sorted by due date, so
// a new date moves one. provider.NextCounted reads such pages again until nothing moves.
//
// These types have no entry. GitHub lists workflow runs completely or by time of creation only, and
// deletes them automatically. It lists check runs below a commit. A label's address is its name, so
// no label could be treated as missing.
var lists = map[string]list{
	"repository": {wholeObjects: true},
	"issue": {path: "/issues", query: url.Values{"state": {"all"}, "sort": {"updated"}, "direction": {"asc"}},
		byChange: true, wholeObjects: true,
		skipMember: "pull_request"}, // GitHub lists pull requests among issues, under other ids
	"issue_comment": {path: "/issues/comments", query: url.Values{"sort": {"updated"},
		"direction": {"asc"}}, byChange: true, wholeObjects: true},
	"pull_request_review_comment": {path: "/pulls/comments", query: url.Values{"sort": {"updated"},
		"direction": {"asc"}}, byChange: true, wholeObjects: true},
	"commit_comment": {path: "/comments", wholeObjects: true},
	"milestone":      {path: "/milestones", query: url.Values{"state": {"all"}}, wholeObjects: true},
	"deployment":     {path: "/deployments", wholeObjects: true},
	// the list leaves out its counters
	"pull_request": {path: "/pulls", query: url.Values{"state": {"all"}, "sort": {"created"}, "direction": {"asc"}},
		stableOrder: true},
	"release": {path: "/releases", wholeObjects: true},
}

// Lists returns the lists of the repositories that the source's section api names.
func (GitHub) Lists(_ *provider.Source, api *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	if len(api.Repositories) == 0 || account != "" { // the mirror stores all objects without an account
		return out
	}
	for objectType, l := range lists {
		out[objectType] = provider.List{ByChange: l.byChange, Lag: listLag, Sparse: l.skipMember != "",
			VersionsOnly: !l.wholeObjects && ruleOf(objectType).mayNotAdvance}
	}
	return out
}

// ListObjects lists one repository after the other.
func (GitHub) ListObjects(_ *provider.Source, api *provider.API, _, objectType string, since, _ time.Time,
	cursor string) provider.Call {
	page, _ := provider.CountedPage(cursor)
	l, at := lists[objectType], readPosition(api, page)
	if at.since != requestedSince {
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
		// GitHub does not document whether since is inclusive, so the call asks from one second
		// earlier.
		c.Query.Set("since", since.UTC().Truncate(time.Second).Add(-time.Second).Format(time.RFC3339))
	}
	return c
}

// listPosition is a position in a list of several repositories: a page, counted from 1, of what
// changed since a time in microseconds. requestedSince stands for the time of the request.
type listPosition struct {
	repository string
	page       int
	since      int64
}

const requestedSince = -1

func (s listPosition) String() string { return fmt.Sprintf("%s %d %d", s.repository, s.page, s.since) }

// readPosition parses a cursor; the empty cursor is the start of the first repository.
func readPosition(api *provider.API, cursor string) listPosition {
	s := listPosition{page: 1, since: requestedSince}
	if cursor != "" {
		_, _ = fmt.Sscanf(cursor, "%s %d %d", &s.repository, &s.page, &s.since)
	} else if len(api.Repositories) > 0 {
		s.repository = api.Repositories[0]
	}
	return s
}

// ObjectPage splits a page. The next cursor is in the same repository if the page's Link has a next
// page.
func (GitHub) ObjectPage(_ *provider.Source, api *provider.API, _, objectType, cursor string, header http.Header,
	body []byte) (page []provider.ListedObject, next string, err error) {
	here, _ := provider.CountedPage(cursor)
	l, at := lists[objectType], readPosition(api, here)
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
	if l.stableOrder {
		return page, after, nil
	}
	counts := func(cursor string) bool { return readPosition(api, cursor).page > 1 }
	next, err = provider.NextCounted(cursor, after, ids, counts)
	switch {
	case err != nil && l.byChange: // every change moves an object, so a busy list may move during every read
		return page, after, nil
	case err != nil:
		return nil, "", fmt.Errorf("read list of %s: %w", objectType, err)
	}
	return page, next, nil
}

// read reads a member of a page; one is nil if it has another type. changed is its updated_at, or
// 0.
func (l list) read(objectType string, raw []byte) (one *provider.ListedObject, id string, changed int64, err error) {
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
	case l.skipMember != "" && has(v, l.skipMember):
		return nil, id, changed, nil
	case l.wholeObjects:
		return &provider.ListedObject{ObjectID: id, Body: raw}, id, changed, nil
	}
	return &provider.ListedObject{ObjectID: id, At: changed, HasAt: ok, LocateState: raw}, id, changed, nil
}

// after returns the cursor of the next page, or "" after the last repository. A list by time
// continues at the last time of the page, and repeats that second and the one before it. If that
// time is not later than the start of the page, more objects than a page holds changed within these
// two seconds. Then the list continues by page number until it is past them. Only on those pages
// could a change or a delete hide another object.
func (l list) after(api *provider.API, at listPosition, more bool, last int64) string {
	switch {
	case more && l.byChange && last > at.since:
		return listPosition{at.repository, 1, last}.String()
	case more:
		return listPosition{at.repository, at.page + 1, at.since}.String()
	}
	return nextRepository(api, at.repository)
}

// nextRepository returns the cursor of the next repository, or "" after the last.
func nextRepository(api *provider.API, repository string) string {
	if i := slices.Index(api.Repositories, repository); i >= 0 && i+1 < len(api.Repositories) {
		return listPosition{api.Repositories[i+1], 1, requestedSince}.String()
	}
	return ""
}

// PartAt returns the repository of a cursor.
func (GitHub) PartAt(api *provider.API, _, cursor string) (part string, begins bool, next string) {
	page, counted := provider.CountedPage(cursor)
	at := readPosition(api, page)
	return at.repository, at.page == 1 && at.since == requestedSince && !counted, nextRepository(api, at.repository)
}

// PartOf returns the repository, as the source names it, that a call reads from.
func (GitHub) PartOf(api *provider.API, call provider.Call) string {
	m := repositoryPath.FindStringSubmatch(call.Path)
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
