package rest_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// pagingModes are the ways to find the next page, by their names in the fake.
var pagingModes = map[string]rest.Next{"page": {Field: "meta.next"}, "page_link": {Link: true},
	"field": {Field: "meta.next"}, "address": {Address: "meta.next"}, "link": {Link: true},
	"last":              {LastObjectField: "thing.key", More: "more"},
	"last without more": {LastObjectField: "thing.key"}, "window": {ByTime: true}}

// pagingTest lists the fake's things with one of these ways.
type pagingTest struct {
	*rest.Reader
	api *provider.API
}

func newPagingTest(t testing.TB, url, kind string) *pagingTest {
	t.Helper()
	next := pagingModes[kind]
	query := []string{"limit", "{limit}", "since", "{since}", "until", "{until}"}
	if next.Field != "" || next.LastObjectField != "" {
		query = append(query, map[bool]string{true: "page", false: "after"}[kind == "page"], "{cursor}")
	}
	if next.LastObjectField != "" {
		next.LastObjectField = strings.TrimPrefix(next.LastObjectField, "thing.")
	}
	path, _, _ := strings.Cut(kind, " ")
	r := reader(t, func(s *rest.Spec, of *rest.Type) {
		s.Header = template(t, "X-Api-Key: {key}")
		of.ID, of.Item, of.Version.Path = "key", "data.thing", "changed"
		of.List = &rest.List{Page: rest.Page{Path: request(t, "/lists/"+strings.Replace(path, "address", "url", 1),
			query...),
			Items: "items", Item: "thing", Limit: 7, Time: declared.RFC3339, Next: next}}
	})
	return &pagingTest{r, &provider.API{BaseURL: url, Key: provider.Secret{Value: []byte(restfake.Key)}}}
}

// walk reads all pages, and calls a function between them. It returns how often each object was
// listed.
func (l *pagingTest) walk(t *testing.T, since, until time.Time, between func()) (listed map[string]int, pages int) {
	t.Helper()
	listed = map[string]int{}
	all, pages := providertest.Listing{Lister: l, Source: source, API: l.api, Account: "own", Type: "thing",
		Since: since, Until: until, Between: between}.Read(t)
	for _, one := range all {
		listed[one.ObjectID]++
		o, err := l.Snapshot(source, &provider.Snapshot{ObjectType: "thing", ObjectID: one.ObjectID, Body: one.Body})
		if err != nil || !o.OwnVersion {
			t.Fatalf("%s: %+v, %v", one.Body, o, err)
		}
	}
	return listed, pages
}

// Every way lists each object, with no more calls than necessary.
func TestObjectPage_everyPaging_listsAllObjects(t *testing.T) {
	t.Parallel()
	for kind := range pagingModes {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := restfake.NewWithoutFaults(t)
			for i := range 28 { // four full pages, so no page is short
				f.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			listed, pages := newPagingTest(t, f.URL, kind).walk(t, time.Time{}, time.Time{}, nil)
			if len(listed) != 28 || slices.Max(slices.Collect(maps.Values(listed))) > 1 && kind != "window" &&
				!strings.HasPrefix(kind, "page") {
				t.Errorf("listed %v", listed)
			}
			if want := map[string]int{"last without more": 5, "window": 6, "page": 8,
				"page_link": 8}[kind]; pages != max(want, 4) {
				t.Errorf("%d pages", pages)
			}
		})
	}
}

// Objects that exist all the time are listed, whatever is created, changed and deleted between the
// pages.
func TestObjectPage_changesBetweenPages_skipNothing(t *testing.T) {
	t.Parallel()
	for kind := range pagingModes {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(kind, " ", seed), func(t *testing.T) {
				t.Parallel()
				r, f := rand.New(rand.NewPCG(seed, 5)), restfake.NewWithoutFaults(t)
				do := func(times int) {
					for range times {
						name := fmt.Sprint("n", r.IntN(1000))
						if r.IntN(4) == 0 {
							name = ""
						}
						// some at the same time
						f.Set(fmt.Sprintf("t%02d", r.IntN(60)), name, time.Duration(r.IntN(6)*200)*time.Millisecond)
					}
				}
				do(120)
				before := f.CurrentNames()
				deleted := map[string]bool{}
				remaining := 30
				listed, _ := newPagingTest(t, f.URL, kind).walk(t, time.Time{}, time.Time{}, func() {
					if remaining--; remaining > 0 {
						do(3)
					}
					for id, name := range f.CurrentNames() {
						deleted[id] = deleted[id] || name == ""
					}
				})
				for id, name := range before {
					if name != "" && !deleted[id] && listed[id] == 0 {
						t.Errorf("%s existed all the time and was not listed", id)
					}
				}
			})
		}
	}
}

// Changes in a time range are listed, including both ends, although the API excludes them.
func TestListObjects_changedInATime_asksForTime(t *testing.T) {
	t.Parallel()
	for kind := range pagingModes {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := restfake.NewWithoutFaults(t)
			at := map[string]time.Time{}
			for i := range 60 {
				id := fmt.Sprintf("t%02d", i)
				f.Set(id, "x", 400*time.Millisecond)
				at[id] = f.Now()
			}
			f.Advance(time.Minute)
			since, until := at["t20"], at["t45"]
			listed, _ := newPagingTest(t, f.URL, kind).walk(t, since, until, nil)
			for id, when := range at {
				inside := !when.Before(since) && !when.After(until)
				far := when.Before(since.Add(-3*time.Second)) || when.After(until.Add(3*time.Second))
				if inside && listed[id] == 0 || far && listed[id] > 0 {
					t.Errorf("%s, changed at %s: listed %d times for %s to %s", id, when, listed[id], since, until)
				}
			}
		})
	}
}

func pageOf(t *testing.T, l *rest.List, cursor string, header http.Header, body string) ([]provider.ListedObject,
	string, error) {
	t.Helper()
	if l.Path.IsZero() {
		l.Path = request(t, "/a/things")
	}
	l.Limit = 2
	return reader(t, func(_ *rest.Spec, of *rest.Type) { of.List = l }).ObjectPage(source, api, "own", "thing", cursor,
		header, []byte(body))
}

// The address of the next page is always at the API.
func TestObjectPage_nextAddress_staysBelowBaseURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://api.example/base/a/things?after=x%26y": "/a/things?after=x%26y",
		"http://API.example/base/elsewhere":             "/elsewhere?",
		"/base/a/things?after=x#part":                   "/a/things?after=x",
		"?after=x":                                      "/a/things?after=x",
		"others?after=x":                                "/a/others?after=x",
		"":                                              "",
		"https://evil.example/base/a/things":            "error: only to the host",
		"https://api.example.evil.example/base/a":       "error: only to the host",
		"//evil.example/base/a/things":                  "error: only to the host",
		"https://api.example:8443/base/a":               "error: only to the host",
		"https://u:p@api.example/base/a":                "error: is not valid",
		"javascript:alert(1)":                           "error: ",
		"https://api.example/other":                     "error: outside of base_url",
		"https://api.example/based":                     "error: outside of base_url",
		"../../../etc":                                  "error: outside of base_url",
		"/base/%2e%2e/x":                                "error: outside of base_url",
		"/base/a?x=%zz":                                 "error: an invalid query",
		"/base/a?key=" + key:                            "error: contains the key",
		"%zz":                                           "error: is not valid",
	} {
		l := &rest.List{Page: rest.Page{Items: "d", Next: rest.Next{Address: "next"}}}
		_, next, err := pageOf(t, l, "", http.Header{}, fmt.Sprintf(`{"d": [], "next": %q}`, address))
		reason, bad := strings.CutPrefix(want, "error: ")
		if bad && (err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), key)) ||
			!bad && (err != nil || next != want) {
			t.Errorf("%s: %q, %v; want %q", address, next, err, want)
			continue
		}
		if bad || next == "" {
			continue
		}
		call := reader(t, func(_ *rest.Spec, of *rest.Type) { of.List = l }).ListObjects(source, api, "own", "thing",
			time.Unix(5, 0), time.Unix(9, 0), next)
		if got := call.Path + "?" + call.Query.Encode(); got != want || call.Account != "own" {
			t.Errorf("%s: %s gives the call %s", address, next, got)
		}
	}
}

func TestObjectPage_linkHeader_namesNextPage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`<?after=1>; rel="next"`:                              "1",
		`<?after=1>; rel=next`:                                "1",
		`<?after=0>; rel="prev", <?after=1>; rel="next last"`: "1",
		`<?after=1>;title="a; rel=prev, <x>" ; REL=NEXT`:      "1",
		`<?after=1>; rel="prev"`:                              "",
		`<?after=1>; title="next"`:                            "",
		`?after=1; rel="next"`:                                "",
		``:                                                    "",
	} {
		_, next, err := pageOf(t, &rest.List{Page: rest.Page{Items: ".", Next: rest.Next{Link: true}}}, "",
			http.Header{"Link": {text}}, `[]`)
		if got := strings.TrimPrefix(next, "/a/things?after="); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, next, err)
		}
	}
}

// A page that cannot be read, or has no valid next page, is an error and not the last page.
func TestObjectPage_malformedPage_isError(t *testing.T) {
	t.Parallel()
	window := rest.List{Page: rest.Page{Items: "d", Next: rest.Next{ByTime: true}}}
	for name, c := range map[string]struct {
		l            rest.List
		cursor, body string
		want         string
	}{
		"no JSON":   {rest.List{}, "", `[`, "byte"},
		"no list":   {rest.List{Page: rest.Page{Items: "d"}}, "", `{"d": {}}`, `the response has no list at "d"`},
		"no object": {rest.List{}, "", `[{"id": "a"}, "b"]`, "element 1 is not an object with an id"},
		"no id":     {rest.List{}, "", `[{"id": null}]`, "element 0 is not an object with an id"},
		"another page without a cursor": {rest.List{Page: rest.Page{Items: "d",
			Next: rest.Next{Field: "next", More: "more"}}}, "",
			`{"d": [], "more": true}`, `there is another page at "more", but does not contain`},
		"an empty page with another page": {rest.List{Page: rest.Page{Items: "d", Next: rest.Next{LastObjectField: "id",
			More: "more"}}},
			"",
			`{"d": [], "more": true}`, "does not contain its cursor"},
		"last object without a value": {rest.List{Page: rest.Page{Items: "d", Next: rest.Next{LastObjectField: "n"}}},
			"",
			`{"d": [{"id": "a"}]}`,
			`the page's last object has no value at "n"`},
		"not sorted": {window, "",
			`{"d": [{"id": "a", "updated": "2027-01-15T08:00:01Z"}, {"id": "b", "updated": "2027-01-15T08:00:00Z"}]}`,
			"object 1 changed before the previous object"},
		"no time of change": {window, "", `{"d": [{"id": "a"}]}`, `object 0 has no time at "updated"`},
		"one second is full": {window, "1800000000000000",
			`{"d": [{"id": "a", "updated": "2027-01-15T08:00:00Z"}, {"id": "b", "updated": "2027-01-15T08:00:00Z"}]}`,
			"raise list.limit"},
		"no such cursor": {window, "x", `{"d": []}`, `the page's cursor "x" is no time`},
		"key in the cursor": {rest.List{Page: rest.Page{Items: "d", Next: rest.Next{Field: "next"}}}, "",
			`{"d": [], "next": "a` +
				key + `"}`, "contains the key"},
		"key in base64": {rest.List{Page: rest.Page{Items: "d", Next: rest.Next{Field: "next"}}}, "",
			`{"d": [], "next": "a` +
				base64.StdEncoding.EncodeToString([]byte(key)) + `"}`, "contains the key"},
	} {
		page, next, err := pageOf(t, &c.l, c.cursor, http.Header{}, c.body)
		if err == nil || !strings.Contains(err.Error(), c.want) || page != nil || next != "" ||
			strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, %q, %v; want %q", name, page, next, err, c.want)
		}
	}
	_, _, err := pageOf(t, &rest.List{}, "", http.Header{"Link": {`<?page=2>; rel=next`}}, `[]`)
	if err == nil || !strings.Contains(err.Error(), "{link: true}") {
		t.Errorf("a list with more pages, but without a way to find them: %v", err)
	}
	for body, want := range map[string]string{`{"d": [], "next": null}`: "", `{"d": [], "next": 0}`: "",
		`{"d": [], "next": false}`: "", `{"d": [], "next": ""}`: "", `{"d": []}`: "", `{"d": [], "next": 17}`: "17"} {
		_, next, err := pageOf(t, &rest.List{Page: rest.Page{Items: "d", Next: rest.Next{Field: "next"}}}, "",
			http.Header{}, body)
		if page, _ := provider.CountedPage(next); err != nil || page != want {
			t.Errorf("%s: %q, %v", body, next, err)
		}
	}
}

// Only the lists of an account that they contain are available and read.
func TestLists_accounts_needAccountInRequest(t *testing.T) {
	t.Parallel()
	named := reader(t, func(_ *rest.Spec, of *rest.Type) {
		of.List = &rest.List{Page: rest.Page{Path: request(t, "/{account}/things", "changed", "{since}..{until}"),
			Time: declared.Milliseconds}, Lag: time.Minute}
	})
	plain := reader(t, func(_ *rest.Spec,
		of *rest.Type) {
		of.List = &rest.List{Page: rest.Page{Path: request(t, "/things")}}
	})
	want := map[string]provider.List{"thing": {ByChange: true, Lag: time.Minute}}
	if diff := cmp.Diff(want, named.Lists(source, api, "another")); diff != "" {
		t.Error(diff)
	}
	if got := named.Lists(source, api, ""); len(got) != 0 {
		t.Errorf("without an account %v", got)
	}
	if own, other := plain.Lists(source, api, "own"), plain.Lists(source, api, "another"); len(own) != 1 ||
		own["thing"].ByChange || len(other) != 0 {
		t.Errorf("own %v, other %v", own, other)
	}
	if _, _, err := plain.ObjectPage(source, api, "another", "thing", "", http.Header{}, []byte(`[]`)); err == nil ||
		!strings.Contains(err.Error(), "put {account} into") {
		t.Errorf("a page of another account: %v", err)
	}
	if _, _, err := reader(t, nil).ObjectPage(source, api, "own", "thing", "", http.Header{},
		[]byte(`[]`)); err == nil {
		t.Error("a page of a type without a list")
	}
	call := named.ListObjects(source, api, "a/b", "thing", time.UnixMilli(1500), time.UnixMilli(3500), "")
	if got := call.Path + "?" + call.Query.Encode(); got != "/a%2Fb/things?changed=0..5000" {
		t.Error(got)
	}
	if call := named.ListObjects(source, api, "own", "thing", time.Time{}, time.Time{}, ""); len(call.Query) != 0 {
		t.Errorf("all of them: %v", call.Query)
	}
}

// A partial list contains the versions of the objects.
func TestObjectPage_partialList_hasVersionsOnly(t *testing.T) {
	t.Parallel()
	page, _, err := pageOf(t, &rest.List{Partial: true}, "", http.Header{},
		`[{"id": 1, "updated": "2027-01-15T08:00:00Z"}, {"id": 2}]`)
	if diff := cmp.Diff([]provider.ListedObject{{ObjectID: "1", At: 1_800_000_000_000_000, HasAt: true},
		{ObjectID: "2"}},
		page); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// FuzzPage checks that no response causes a panic, and that the next page is below the base URL.
func FuzzPage(f *testing.F) {
	f.Add(`{"items": [{"thing": {"key": "a", "changed": "2027-01-15T08:00:00Z"}}], `+
		`"meta": {"next": "/api/x?y"}, "more": true}`, `<?a>; rel="next"`, "")
	f.Add(`{"items": [], "meta": {"next": "//h"}}`, `<//h>; rel=next; a="`, "1800000000000000")
	f.Add(`[{"key": {}}]`, `<`, "x")
	f.Fuzz(func(t *testing.T, body, link, cursor string) {
		for kind := range pagingModes {
			l := newPagingTest(t, "https://h.example/api", kind)
			page, next, err := l.ObjectPage(source, l.api, "own", "thing", cursor, http.Header{"Link": {link}},
				[]byte(body))
			if err != nil {
				continue
			}
			for _, one := range page {
				_, err := l.Snapshot(source, &provider.Snapshot{ObjectType: "thing", ObjectID: one.ObjectID,
					Body: one.Body})
				if dead := (*provider.Dead)(nil); err != nil && !errors.As(err, &dead) {
					t.Fatal(err)
				}
			}
			if call := l.ListObjects(source, l.api, "own", "thing", time.Time{}, time.Time{},
				next); !strings.HasPrefix(call.Path, "/") || strings.Contains(call.Path, "//h") {
				t.Fatalf("%s: next %q: %+v", kind, next, call)
			}
		}
	})
}
