package github_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// GitHub's responses and their verdicts.
func TestAnswer_responses_giveVerdict(t *testing.T) {
	t.Parallel()
	const date = "Thu, 01 Jan 2026 00:00:00 GMT" // 1767225600
	errorBody := func(message string) string { return `{"message": "` + message + `"}` }
	for name, c := range map[string]struct {
		status  int
		headers []string
		body    string
		kind    provider.VerdictKind
		wait    time.Duration
		detail  string
	}{
		"an object":         {200, nil, `{"id": 1}`, provider.Found, 0, ""},
		"a list":            {200, nil, ` [] `, provider.Found, 0, ""},
		"accepted":          {202, nil, `{}`, provider.Found, 0, ""},
		"a page of a proxy": {200, nil, `<html>`, provider.Failure, 0, "no JSON"},
		"half of the hour's calls used": {200, []string{"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "2500",
			"X-RateLimit-Reset", "1767226200"}, `{}`, provider.Found, 0, ""},
		"more than half of them used": {200, []string{"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "2499",
			"X-RateLimit-Reset", "1767226200"}, `{}`, provider.Found, 601 * time.Second, ""},
		"all of them used": {403, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1767225610"},
			errorBody("API rate limit exceeded"), provider.Throttled, 11 * time.Second, "used up"},
		"all of them used, as 429": {429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "99999999999"},
			errorBody("x"), provider.Throttled, time.Hour, "used up"},
		"secondary limit": {403, []string{"Retry-After", "7", "X-RateLimit-Remaining", "4000"}, errorBody("x"),
			provider.Throttled, 7 * time.Second, "short time"},
		"secondary limit without a time": {403, nil, errorBody("You have exceeded a secondary rate limit."),
			provider.Throttled,
			time.Minute, "short time"},
		"another 429": {429, nil, errorBody("x"), provider.Throttled, time.Second, ""},
		"no permission": {403, []string{"X-Accepted-GitHub-Permissions", "issues=read; pull_requests=read"},
			errorBody("Resource not accessible"), provider.Rejected, 0, "issues=read; pull_requests=read"},
		"malformed permission": {403, []string{"X-Accepted-GitHub-Permissions", "<script>"}, errorBody("x"),
			provider.Rejected, 0, "may not do this"},
		"single sign-on": {403, []string{"X-GitHub-SSO", "required; url=https://x"}, errorBody("x"),
			provider.Rejected, 0, "single sign-on"},
		"a wrong key":     {401, nil, errorBody("Bad credentials"), provider.Rejected, time.Minute, "401"},
		"none":            {404, nil, errorBody("Not Found"), provider.Missing, 0, "404"},
		"unknown address": {404, nil, `<html>`, provider.Failure, 0, "is base_url right?"},
		"deleted":         {410, nil, errorBody("This issue was deleted"), provider.Missing, 0, "410"},
		"has disabled this": {410, nil, errorBody("Issues has been disabled in this repository."), provider.Rejected, 0,
			"has disabled this"},
		"withheld":   {451, nil, errorBody("Repository access blocked"), provider.Rejected, 0, "legal"},
		"old cursor": {422, nil, errorBody("Invalid cursor"), provider.Expired, 0, "cursor"},
		"the end of a list": {422, nil, errorBody("Only the first 1000 results are available."), provider.Rejected, 0,
			"no more of them than those already"},
		"the end of pages": {422, nil, errorBody("Pagination with the page parameter is not supported for large " +
			"datasets, please use cursor based pagination (after/before)"), provider.Rejected, 0,
			"no more of them than those already"},
		"unprocessable": {422, nil, errorBody("Validation Failed"), provider.Failure, 0, "422"},
		"a redirect":    {301, nil, errorBody("Moved Permanently"), provider.Failure, 0, "redirect"},
		"broken":        {500, nil, errorBody("Server Error"), provider.Failure, 0, "500"},
	} {
		h := http.Header{"Date": {date}}
		for pair := range slices.Chunk(c.headers, 2) {
			h.Set(pair[0], pair[1])
		}
		v := github.GitHub{}.Answer(c.status, h, []byte(c.body))
		if v.Kind != c.kind || v.Wait != c.wait || !strings.Contains(v.Detail, c.detail) ||
			(v.Detail == "") != (c.kind == provider.Found) {
			t.Errorf("%s: %+v, want %s, wait %s, with %q", name, v, c.kind, c.wait, c.detail)
		}
	}
}

// The address of an object, from its state and its newest event.
func TestLocate_types_findCall(t *testing.T) {
	t.Parallel()
	const api = "https://api.github.com/repos/octo-org/kettle"
	state := func(address string) string { return `{"id": 7, "url": "` + address + `"}` }
	event := func(eventType, body string) *provider.StoredEvent {
		return &provider.StoredEvent{Type: eventType, Body: []byte(body)}
	}
	for name, c := range map[string]struct {
		objectType, id, state string
		newest                *provider.StoredEvent
		path, check           string
	}{
		"an issue": {"issue", "7", state(api + "/issues/3"), nil,
			"/repos/octo-org/kettle/issues/3", "/repos/octo-org/kettle/issues"},
		"of an Enterprise Server": {"issue", "7", state("https://git.example/api/v3/repos/o/r.js/issues/3"), nil,
			"/repos/o/r.js/issues/3", "/repos/o/r.js/issues"},
		"the newest event has another address": {"issue", "7", state(api + "/issues/3"),
			event("issues.opened", `{"action": "opened", "issue": `+state(api+"-2/issues/4")+`}`),
			"/repos/octo-org/kettle-2/issues/4", "/repos/octo-org/kettle-2/issues"},
		"an event of another object": {"issue", "7", state(api + "/issues/3"),
			event("issues.opened", `{"action": "opened", "issue": {"id": 8, "url": "`+api+`/issues/4"}}`),
			"/repos/octo-org/kettle/issues/3", "/repos/octo-org/kettle/issues"},
		"no state": {"label", "7", "", event("label.created", `{"action": "created", "label": `+
			state(api+"/labels/good%20first%20issue")+`}`), "/repos/octo-org/kettle/labels/good%20first%20issue", ""},
		"a release": {"release", "7", state(api + "/releases/7"), nil,
			"/repos/octo-org/kettle/releases/7", "/repos/octo-org/kettle/releases"},
		"a draft": {"release", "7", `{"url": "` + api + `/releases/7", "draft": true}`, nil,
			"/repos/octo-org/kettle/releases/7", ""},
		"a draft again": {"release", "7", state(api + "/releases/7"),
			event("release.unpublished", `{"action": "unpublished", "release": `+state(api+"/releases/7")+`}`),
			"/repos/octo-org/kettle/releases/7", ""},
		"a created release": {"release", "7", state(api + "/releases/7"),
			event("release.created", `{"action": "created", "release": `+state(api+"/releases/7")+`}`),
			"/repos/octo-org/kettle/releases/7", ""},
		"a published draft": {"release", "7", state(api + "/releases/7"),
			event("release.created", `{"action": "created", "release": {"id": 7, "url": "`+api+
				`/releases/7", "draft": false}}`), "/repos/octo-org/kettle/releases/7",
			"/repos/octo-org/kettle/releases"},
		"a draft that was edited": {"release", "7", state(api + "/releases/7"),
			event("release.edited", `{"action": "edited", "release": {"id": 7, "url": "`+api+
				`/releases/7", "draft": true}}`), "/repos/octo-org/kettle/releases/7", ""},
		"one that was published": {"release", "7", state(api + "/releases/7"),
			event("release.published", `{"action": "published", "release": `+state(api+"/releases/7")+`}`),
			"/repos/octo-org/kettle/releases/7", "/repos/octo-org/kettle/releases"},
		"another release's address": {"release", "7", state(api + "/releases/17"), nil, "", ""},
		"a comment": {"issue_comment", "7", state(api + "/issues/comments/7"), nil,
			"/repos/octo-org/kettle/issues/comments/7", "/repos/octo-org/kettle/issues/comments"},
		"a run": {"workflow_run", "7", state(api + "/actions/runs/7"), nil,
			"/repos/octo-org/kettle/actions/runs/7", "/repos/octo-org/kettle/actions/runs"},
		"a repository": {"repository", "7", state(api),
			event("repository.edited", `{"action": "edited", "repository": `+state(api)+`}`), "/repos/octo-org/kettle",
			""},
		"a deleted repository": {"repository", "7", state(api),
			event("repository.deleted", `{"action": "deleted", "repository": `+state(api)+`}`),
			"/repos/octo-org/kettle", "/"},
		"an address with dots": {"issue", "7", state("https://api.github.com/repos/octo-org/../issues/3"), nil,
			"", ""},
		"a label with dots":       {"label", "7", state(api + "/labels/.."), nil, "", ""},
		"an address with a query": {"issue", "7", state(api + "/issues/3?x=/issues/4"), nil, "", ""},
		"another type's":          {"issue", "7", state(api + "/pulls/3"), nil, "", ""},
		"no state and no event":   {"issue", "7", "", nil, "", ""},
		"a type that is not read": {"star", "5:6", state(api), nil, "", ""},
	} {
		var stored []byte
		if c.state != "" {
			stored = []byte(c.state)
		}
		call, check, ok := github.GitHub{}.Locate(&provider.API{}, "", c.objectType, c.id, stored, c.newest)
		if call.Path != c.path || check.Path != c.check || ok != (c.path != "") {
			t.Errorf("%s: %q, check %q, %t; want %q, %q", name, call.Path, check.Path, ok, c.path, c.check)
		}
	}
}

// A delivery from the API is the same event as its webhook, however it was sent and written.
func TestReadDelivery_delivery_equalsWebhook(t *testing.T) {
	t.Parallel()
	const payload = `{"action":"deleted","label":{"id":7,"color":"d73a4a"},"repository":{"id":5,"score":1.0}}`
	hooked := newDelivery(payload, "X-GitHub-Event", "label", "X-GitHub-Delivery", "d-1")
	form := newDelivery("payload="+url.QueryEscape(payload), "X-GitHub-Event", "label", "X-GitHub-Delivery", "d-1")
	d, err := github.GitHub{}.ReadDelivery(
		[]byte(`{"id": 12, "guid": "d-1", "event": "label", "action": "deleted",
		"request": {"headers": {"X-GitHub-Delivery": "d-1", "X-GitHub-Hook-ID": "3",
		"X-Hub-Signature-256": "sha256=00", "content-type": "application/x-www-form-urlencoded", "odd": 1},
		"payload": {"repository": {"score": 1.00, "id": 5}, "action": "deleted",
		"label": {"id": 7, "color": "d73a4\u0061"}}}}`))
	testkit.Must(t, err)
	want := identify(t, &provider.Source{}, hooked)
	for name, other := range map[string]*provider.Delivery{"form": form, "API": d} {
		if diff := cmp.Diff(want, identify(t, &provider.Source{}, other)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if d.Header.Get("X-GitHub-Hook-ID") != "3" || d.Header.Get("X-Hub-Signature-256") != "" ||
		d.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%v", d.Header)
	}
	for _, body := range []string{`{"guid": "d-1", "event": "label", "request": {"headers": {}, "payload": null}}`,
		`{"guid": "d-1"}`, `[]`, `{"request": {"payload": "text"}}`} {
		if d, err := (github.GitHub{}).ReadDelivery([]byte(body)); err == nil {
			t.Errorf("%s: %s", body, d.Body)
		}
	}
}

func TestDeliveryPage_pages_giveDeliveries(t *testing.T) {
	t.Parallel()
	header := http.Header{"Link": {`<https://api.github.com/repos/o/r/hooks/1/deliveries?per_page=100&cursor=v1_11>; rel="next"`}}
	page, next, err := github.GitHub{}.DeliveryPage(header, []byte(`[
		{"id": 9007199254740993, "guid": "a", "delivered_at": "2026-01-01T00:00:00.5+01:00",
		"status": "OK", "status_code": 200},
		{"id": 11, "guid": "b", "delivered_at": "2026-01-01T00:00:00Z",
		"status": "failed to connect to host", "status_code": 0}]`))
	want := []provider.SentDelivery{{ID: "9007199254740993", Key: "a", SentAt: time.Date(2025, 12, 31, 23, 0, 0, 5e8,
		time.UTC)},
		{ID: "11", Key: "b", SentAt: time.Unix(1767225600, 0).UTC(), Failed: true}}
	if diff := cmp.Diff(want, page); diff != "" || next != "v1_11" || err != nil {
		t.Errorf("next %q, %v: %s", next, err, diff)
	}
	for _, body := range []string{`{}`, `[{"id": 0, "guid": "a", "delivered_at": "2026-01-01T00:00:00Z"}]`,
		`[{"id": 1, "delivered_at": "2026-01-01T00:00:00Z"}]`, `[{"id": 1, "guid": "a"}]`} {
		if _, _, err := (github.GitHub{}).DeliveryPage(nil, []byte(body)); err == nil {
			t.Errorf("%s is accepted", body)
		}
	}
}

// listReader reads lists of a fake.
type listReader struct {
	fake  *githubfake.Fake
	api   *provider.API
	pages int
}

func newListReader(t *testing.T, o githubfake.Options) *listReader {
	t.Helper()
	l := &listReader{fake: githubfake.New(t, o)}
	l.api = &provider.API{BaseURL: l.fake.URL, Key: provider.Secret{Value: []byte(githubfake.Key)},
		Repositories: l.fake.Repositories()}
	testkit.Must(t, (github.GitHub{}).CompleteAPI(l.api))
	return l
}

// all reads a complete list, and calls between after each page.
func (l *listReader) all(t *testing.T, objectType string, since time.Time,
	between func()) map[string]provider.ListedObject {
	t.Helper()
	got := map[string]provider.ListedObject{}
	list := providertest.Listing{Lister: github.GitHub{}, API: l.api, Type: objectType, Since: since, Between: between}
	all, pages := list.Read(t)
	for _, one := range all {
		got[one.ObjectID] = one
	}
	l.pages += pages
	return got
}

// Each type is listed completely, over all repositories, while objects change, appear and disappear
// between the pages. Objects that exist all the time are listed, and pull requests are not among
// issues.
func TestListObjects_allPages_showEveryObject(t *testing.T) {
	t.Parallel()
	for _, objectType := range []string{"issue", "pull_request", "issue_comment", "repository"} {
		t.Run(objectType, func(t *testing.T) {
			t.Parallel()
			l := newListReader(t, githubfake.Options{Seed: 11, Objects: 900, Comments: 60})
			l.fake.RunSteps(2500)
			before := l.fake.CurrentObjects()
			got := l.all(t, objectType, time.Time{}, func() { l.fake.RunSteps(25) })
			after := map[string][]byte{}
			for _, o := range l.fake.CurrentObjects() {
				after[o.Type+o.ID] = o.Body
			}
			existing := 0
			for _, o := range before {
				if o.Type != objectType || o.Body == nil || after[o.Type+o.ID] == nil {
					continue
				}
				existing++
				if one, ok := got[o.ID]; !ok || (one.Body == nil) == (objectType != "pull_request") ||
					one.HasAt != (one.Body == nil) {
					t.Errorf("%s is listed: %t, %+v", o.ID, ok, one)
				}
			}
			for id := range got {
				if _, ok := after[objectType+id]; !ok {
					t.Errorf("%s is not a %s", id, objectType)
				}
			}
			if existing < 2 || objectType != "repository" && existing < 100 {
				t.Errorf("%d objects in %d pages, so this test proves nothing", existing, l.pages)
			}
		})
	}
}

// TestLists_countedPages_deletesMoveNothingOutOfSight deletes objects between the pages of a list
// that is paged by number.
func TestLists_countedPages_deletesMoveNothingOutOfSight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		l := newListReader(t, githubfake.Options{Repositories: 2, Gap: time.Microsecond})
		there := map[string]bool{}
		for range rapid.IntRange(0, 420).Draw(rt, "releases") {
			id := l.fake.CreateDraft(rapid.IntRange(0, 1).Draw(rt, "repository"))
			l.fake.Publish(id)
			there[id] = true
		}
		pauses := 0 // the list must be unchanged once
		got := l.all(t, "release", time.Time{}, func() {
			if pauses++; pauses > 8 {
				return
			}
			ids := slices.Sorted(maps.Keys(there))
			for range min(len(ids), rapid.IntRange(0, 40).Draw(rt, "deletes")) {
				id := rapid.SampledFrom(ids).Draw(rt, "delete")
				if there[id] {
					l.fake.Delete(id)
					delete(there, id)
				}
			}
		})
		for id := range there {
			if _, ok := got[id]; !ok {
				rt.Fatalf("release %s is not listed, in %d pages", id, l.pages)
			}
		}
	})
}

// A list by change contains what changed since a time, including both ends, in each repository,
// whether since is inclusive or not. It contains nothing older than the second before.
func TestListObjects_changedSince_asksForTime(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		l := newListReader(t, githubfake.Options{Seed: 12, Objects: 100, SinceIsExclusive: after})
		l.fake.RunSteps(300)
		l.fake.Advance(time.Minute)
		since := l.fake.Now()
		first := l.fake.OpenIssue(0)
		l.fake.RunSteps(30)
		want := map[string]bool{}
		for _, o := range l.fake.CurrentObjects() {
			if o.Type == "issue" && o.Body != nil && strings.Compare(field(t, o.Body, "updated_at"),
				since.Truncate(time.Second).Format(time.RFC3339)) >= 0 {
				want[o.ID] = true
			}
		}
		got := l.all(t, "issue", since, nil)
		for id := range want {
			if _, ok := got[id]; !ok {
				t.Errorf("%s is missing", id)
			}
		}
		if len(got) != len(want) || len(want) < 3 || !want[first] || l.pages != 2 {
			t.Errorf("%d of %d, in %d pages", len(got), len(want), l.pages)
		}
	}
}

// Where a page ends within a second, or more objects than a page holds changed in one second, all
// are listed, and the list ends. Edits between the pages move issues to the end of the list.
func TestObjectPage_fullSeconds_listAllIssues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		issues, perSecond int
		exclusive         bool
		edits             int
		maxPages          int
	}{
		"pages end within a second":                  {240, 30, false, 0, 6},
		"pages end within a second, since exclusive": {240, 30, true, 0, 6},
		"more than a page in one second":             {350, 1000, false, 0, 9}, // four counted pages, each read twice
		"edits, more than two pages in one second":   {250, 1000, false, 10, 1000},
	} {
		l := newListReader(t, githubfake.Options{Repositories: 1, Gap: time.Microsecond, SinceIsExclusive: c.exclusive})
		var ids []string
		for i := range c.issues {
			if i%c.perSecond == 0 {
				l.fake.Advance(time.Second)
			}
			ids = append(ids, l.fake.OpenIssue(0))
		}
		l.fake.Advance(time.Minute)
		ids = append(ids, l.fake.OpenIssue(0))
		edits := ids[:c.edits]
		got := l.all(t, "issue", time.Time{}, func() {
			if len(edits) > 0 {
				l.fake.Edit(edits[0])
				edits = edits[1:]
			}
		})
		for _, id := range ids {
			if _, ok := got[id]; !ok {
				t.Errorf("%s: issue %s is not listed", name, id)
			}
		}
		if len(got) != len(ids) || l.pages > c.maxPages {
			t.Errorf("%s: %d of %d, in %d pages", name, len(got), len(ids), l.pages)
		}
	}
}

// The parts of a list are the repositories, in their order. An object belongs to the repository
// that it is read from, in any spelling.
func TestPartAt_cursors_nameRepository(t *testing.T) {
	t.Parallel()
	api := &provider.API{Repositories: []string{"o/a", "O/b.js", "o/c"}}
	var known []string
	for cursor := ""; ; {
		part, begins, next := github.GitHub{}.PartAt(api, "issue", cursor)
		known = append(known, fmt.Sprint(part, begins))
		page := []byte(`[{"id": 1, "updated_at": "2026-01-01T00:00:00Z"}]`)
		_, within, err := github.GitHub{}.ObjectPage(nil, api, "", "issue", cursor,
			http.Header{"Link": {`<https://x/y?page=2>; rel="next"`}}, page)
		if at, begins, after := (github.GitHub{}).PartAt(api, "issue", within); err != nil || at != part || begins ||
			after != next {
			t.Errorf("%q within %s: %s, %t, %q (%v)", within, part, at, begins, after, err)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"o/atrue", "O/b.jstrue", "o/ctrue"}, known); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]string{"/repos/o/B.js/issues/3": "O/b.js", "/repos/o/a": "o/a",
		"/repos/o/ab": "", "/repos/x/a/issues/3": "", "/": ""} {
		if got := (github.GitHub{}).PartOf(api, provider.Call{Path: path}); got != want {
			t.Errorf("%s is of %q, want %q", path, got, want)
		}
	}
}

func field(t *testing.T, body []byte, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(string(body), fmt.Sprintf("%q:\"", name))
	text, _, more := strings.Cut(rest, `"`)
	if !ok || !more {
		t.Fatalf("no %s in %s", name, body)
	}
	return text
}

// Without repositories no type is listed.
func TestLists_noRepositories_isEmpty(t *testing.T) {
	t.Parallel()
	if l := (github.GitHub{}).Lists(nil, &provider.API{}, ""); len(l) != 0 {
		t.Errorf("%v", l)
	}
	if l := (github.GitHub{}).Lists(nil, &provider.API{Repositories: []string{"o/r"}}, ""); len(l) != 9 ||
		!l["issue"].ByChange || l["pull_request"].ByChange {
		t.Errorf("%v", l)
	}
}
