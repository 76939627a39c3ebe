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

// pagings are the ways from page to page, by the fake's word for each.
var pagings = map[string]rest.Next{"page": {Field: "meta.next"}, "page_link": {Link: true}, "field": {Field: "meta.next"}, "address": {Address: "meta.next"}, "link": {Link: true}, "last": {Last: "thing.key", More: "more"},
	"last without more": {Last: "thing.key"}, "window": {Window: true}}

// lists reads the fake's things by one of the ways.
type lists struct {
	*rest.Reader
	api *provider.API
}

func newLists(t testing.TB, url, kind string) *lists {
	t.Helper()
	next := pagings[kind]
	query := []string{"limit", "{limit}", "since", "{since}", "until", "{until}"}
	if next.Field != "" || next.Last != "" {
		query = append(query, map[bool]string{true: "page", false: "after"}[kind == "page"], "{cursor}")
	}
	if next.Last != "" {
		next.Last = strings.TrimPrefix(next.Last, "thing.")
	}
	path, _, _ := strings.Cut(kind, " ")
	r := reader(t, func(s *rest.Spec, of *rest.Type) {
		s.Header, s.Credential = "X-Api-Key", template(t, "{key}")
		of.ID, of.Item, of.Version.Path = "key", "data.thing", "changed"
		of.List = &rest.List{Request: request(t, "/lists/"+strings.Replace(path, "address", "url", 1), query...), Items: "items", Item: "thing", Limit: 7, Time: declared.RFC3339, Next: next}
	})
	return &lists{r, &provider.API{BaseURL: url, Key: provider.Secret{Value: []byte(restfake.Key)}}}
}

// walk reads all pages, and does something between them. It returns how often each object was told.
func (l *lists) walk(t *testing.T, since, until time.Time, between func()) (told map[string]int, pages int) {
	t.Helper()
	told = map[string]int{}
	all, pages := providertest.Listing{Lister: l, Source: source, API: l.api, Account: "own", Type: "thing",
		Since: since, Until: until, Between: between}.Read(t)
	for _, one := range all {
		told[one.ObjectID]++
		o, err := l.Snapshot(source, &provider.Snapshot{ObjectType: "thing", ObjectID: one.ObjectID, Body: one.Body})
		if err != nil || !o.Own {
			t.Fatalf("%s: %+v, %v", one.Body, o, err)
		}
	}
	return told, pages
}

// Every way from page to page tells each object, and asks no more than it must.
func TestEveryPaging(t *testing.T) {
	t.Parallel()
	for kind := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := restfake.New(t)
			for i := range 28 { // four full pages, of which none says by being short that it is the last
				f.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			told, pages := newLists(t, f.URL, kind).walk(t, time.Time{}, time.Time{}, nil)
			if len(told) != 28 || slices.Max(slices.Collect(maps.Values(told))) > 1 && kind != "window" && !strings.HasPrefix(kind, "page") {
				t.Errorf("told %v", told)
			}
			if want := map[string]int{"last without more": 5, "window": 6, "page": 8, "page_link": 8}[kind]; pages != max(want, 4) {
				t.Errorf("%d pages", pages)
			}
		})
	}
}

// Whatever is made, changed and deleted between the pages, what was there all the time is told.
func TestPagesSkipNothing(t *testing.T) {
	t.Parallel()
	for kind := range pagings {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(kind, " ", seed), func(t *testing.T) {
				t.Parallel()
				r, f := rand.New(rand.NewPCG(seed, 5)), restfake.New(t)
				do := func(times int) {
					for range times {
						name := fmt.Sprint("n", r.IntN(1000))
						if r.IntN(4) == 0 {
							name = ""
						}
						f.Set(fmt.Sprintf("t%02d", r.IntN(60)), name, time.Duration(r.IntN(6)*200)*time.Millisecond) // some in the same moment
					}
				}
				do(120)
				before := f.Truth()
				gone := map[string]bool{}
				left := 30
				told, _ := newLists(t, f.URL, kind).walk(t, time.Time{}, time.Time{}, func() {
					if left--; left > 0 {
						do(3)
					}
					for id, name := range f.Truth() {
						gone[id] = gone[id] || name == ""
					}
				})
				for id, name := range before {
					if name != "" && !gone[id] && told[id] == 0 {
						t.Errorf("%s was there all the time and was not told", id)
					}
				}
			})
		}
	}
}

// What changed in a time is told, both ends included, though the API leaves them out.
func TestChangedInATime(t *testing.T) {
	t.Parallel()
	for kind := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := restfake.New(t)
			at := map[string]time.Time{}
			for i := range 60 {
				id := fmt.Sprintf("t%02d", i)
				f.Set(id, "x", 400*time.Millisecond)
				at[id] = f.Now()
			}
			f.Advance(time.Minute)
			since, until := at["t20"], at["t45"]
			told, _ := newLists(t, f.URL, kind).walk(t, since, until, nil)
			for id, when := range at {
				inside := !when.Before(since) && !when.After(until)
				far := when.Before(since.Add(-3*time.Second)) || when.After(until.Add(3*time.Second))
				if inside && told[id] == 0 || far && told[id] > 0 {
					t.Errorf("%s, changed at %s: told %d times for %s to %s", id, when, told[id], since, until)
				}
			}
		})
	}
}

func pageOf(t *testing.T, l *rest.List, cursor string, header http.Header, body string) ([]provider.Listed, string, error) {
	t.Helper()
	if l.Request.Query == nil {
		l.Request = request(t, "/a/things")
	}
	l.Limit = 2
	return reader(t, func(_ *rest.Spec, of *rest.Type) { of.List = l }).ObjectPage(source, api, "own", "thing", cursor, header, []byte(body))
}

// An address that a page names for the next leads to the API alone.
func TestNextAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://api.example/base/a/things?after=x%26y": "/a/things?after=x%26y",
		"http://API.example/base/elsewhere":             "/elsewhere?",
		"/base/a/things?after=x#part":                   "/a/things?after=x",
		"?after=x":                                      "/a/things?after=x",
		"others?after=x":                                "/a/others?after=x",
		"":                                              "",
		"https://evil.example/base/a/things":            "error: another host",
		"https://api.example.evil.example/base/a":       "error: another host",
		"//evil.example/base/a/things":                  "error: another host",
		"https://api.example:8443/base/a":               "error: another host",
		"https://u:p@api.example/base/a":                "error: is none",
		"javascript:alert(1)":                           "error: ",
		"https://api.example/other":                     "error: outside of base_url",
		"https://api.example/based":                     "error: outside of base_url",
		"../../../etc":                                  "error: outside of base_url",
		"/base/%2e%2e/x":                                "error: outside of base_url",
		"/base/a?x=%zz":                                 "error: a query that cannot be read",
		"/base/a?key=" + key:                            "error: carries the key",
		"%zz":                                           "error: is none",
	} {
		l := &rest.List{Items: "d", Next: rest.Next{Address: "next"}}
		_, next, err := pageOf(t, l, "", http.Header{}, fmt.Sprintf(`{"d": [], "next": %q}`, address))
		reason, bad := strings.CutPrefix(want, "error: ")
		if bad && (err == nil || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), key)) || !bad && (err != nil || next != want) {
			t.Errorf("%s: %q, %v; want %q", address, next, err, want)
			continue
		}
		if bad || next == "" {
			continue
		}
		call := reader(t, func(_ *rest.Spec, of *rest.Type) { of.List = l }).ListObjects(source, api, "own", "thing", time.Unix(5, 0), time.Unix(9, 0), next)
		if got := call.Path + "?" + call.Query.Encode(); got != want || call.Account != "own" {
			t.Errorf("%s: %s becomes the call %s", address, next, got)
		}
	}
}

func TestLinkHeader(t *testing.T) {
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
		_, next, err := pageOf(t, &rest.List{Items: ".", Next: rest.Next{Link: true}}, "", http.Header{"Link": {text}}, `[]`)
		if got := strings.TrimPrefix(next, "/a/things?after="); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, next, err)
		}
	}
}

// A page that cannot be read, or that leads nowhere, is an error and not the last.
func TestPagesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	window := rest.List{Items: "d", Next: rest.Next{Window: true}}
	for name, c := range map[string]struct {
		l            rest.List
		cursor, body string
		want         string
	}{
		"no JSON":             {rest.List{}, "", `[`, "byte"},
		"no list":             {rest.List{Items: "d"}, "", `{"d": {}}`, `the answer has no list at "d"`},
		"no object":           {rest.List{}, "", `[{"id": "a"}, "b"]`, "element 1 is no object with an id"},
		"no id":               {rest.List{}, "", `[{"id": null}]`, "element 0 is no object with an id"},
		"more and not where":  {rest.List{Items: "d", Next: rest.Next{Field: "next", More: "more"}}, "", `{"d": [], "more": true}`, `there is more at "more", and not where`},
		"more of nothing":     {rest.List{Items: "d", Next: rest.Next{Last: "id", More: "more"}}, "", `{"d": [], "more": true}`, "and not where"},
		"nothing in the last": {rest.List{Items: "d", Next: rest.Next{Last: "n"}}, "", `{"d": [{"id": "a"}]}`, `the page's last object has nothing at "n"`},
		"not in order":        {window, "", `{"d": [{"id": "a", "updated": "2027-01-15T08:00:01Z"}, {"id": "b", "updated": "2027-01-15T08:00:00Z"}]}`, "object 1 was changed before the one in front of it"},
		"no time of change":   {window, "", `{"d": [{"id": "a"}]}`, `object 0 has no time at "updated"`},
		"one second is full":  {window, "1800000000000000", `{"d": [{"id": "a", "updated": "2027-01-15T08:00:00Z"}, {"id": "b", "updated": "2027-01-15T08:00:00Z"}]}`, "raise list.limit"},
		"no such cursor":      {window, "x", `{"d": []}`, `the page's place "x" is no time`},
		"key in the cursor":   {rest.List{Items: "d", Next: rest.Next{Field: "next"}}, "", `{"d": [], "next": "a` + key + `"}`, "carries the key"},
		"key in base64":       {rest.List{Items: "d", Next: rest.Next{Field: "next"}}, "", `{"d": [], "next": "a` + base64.StdEncoding.EncodeToString([]byte(key)) + `"}`, "carries the key"},
	} {
		page, next, err := pageOf(t, &c.l, c.cursor, http.Header{}, c.body)
		if err == nil || !strings.Contains(err.Error(), c.want) || page != nil || next != "" || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v, %q, %v; want %q", name, page, next, err, c.want)
		}
	}
	_, _, err := pageOf(t, &rest.List{}, "", http.Header{"Link": {`<?page=2>; rel=next`}}, `[]`)
	if err == nil || !strings.Contains(err.Error(), "{link: true}") {
		t.Errorf("a list that goes on, and whose pages nobody described: %v", err)
	}
	for body, want := range map[string]string{`{"d": [], "next": null}`: "", `{"d": [], "next": 0}`: "", `{"d": [], "next": false}`: "", `{"d": [], "next": ""}`: "", `{"d": []}`: "", `{"d": [], "next": 17}`: "17"} {
		_, next, err := pageOf(t, &rest.List{Items: "d", Next: rest.Next{Field: "next"}}, "", http.Header{}, body)
		if page, _ := provider.CountedPage(next); err != nil || page != want {
			t.Errorf("%s: %q, %v", body, next, err)
		}
	}
}

// Lists are told, and read, for the accounts that they name.
func TestListsByAccount(t *testing.T) {
	t.Parallel()
	named := reader(t, func(_ *rest.Spec, of *rest.Type) {
		of.List = &rest.List{Request: request(t, "/{account}/things", "changed", "{since}..{until}"), Time: declared.Milliseconds, Lag: time.Minute}
	})
	plain := reader(t, func(_ *rest.Spec, of *rest.Type) { of.List = &rest.List{Request: request(t, "/things")} })
	want := map[string]provider.List{"thing": {ByChange: true, Lag: time.Minute}}
	if diff := cmp.Diff(want, named.Lists(source, api, "another")); diff != "" {
		t.Error(diff)
	}
	if got := named.Lists(source, api, ""); len(got) != 0 {
		t.Errorf("without an account %v", got)
	}
	if own, other := plain.Lists(source, api, "own"), plain.Lists(source, api, "another"); len(own) != 1 || own["thing"].ByChange || len(other) != 0 {
		t.Errorf("own %v, another's %v", own, other)
	}
	if _, _, err := plain.ObjectPage(source, api, "another", "thing", "", http.Header{}, []byte(`[]`)); err == nil || !strings.Contains(err.Error(), "put {account} into") {
		t.Errorf("a page of another account: %v", err)
	}
	if _, _, err := reader(t, nil).ObjectPage(source, api, "own", "thing", "", http.Header{}, []byte(`[]`)); err == nil {
		t.Error("a page of what has no list")
	}
	call := named.ListObjects(source, api, "a/b", "thing", time.UnixMilli(1500), time.UnixMilli(3500), "")
	if got := call.Path + "?" + call.Query.Encode(); got != "/a%2Fb/things?changed=0..5000" {
		t.Error(got)
	}
	if call := named.ListObjects(source, api, "own", "thing", time.Time{}, time.Time{}, ""); len(call.Query) != 0 {
		t.Errorf("all of them: %v", call.Query)
	}
}

// A list that tells less than the object tells its version.
func TestPartialList(t *testing.T) {
	t.Parallel()
	page, _, err := pageOf(t, &rest.List{Partial: true}, "", http.Header{}, `[{"id": 1, "updated": "2027-01-15T08:00:00Z"}, {"id": 2}]`)
	if diff := cmp.Diff([]provider.Listed{{ObjectID: "1", At: 1_800_000_000_000_000, HasAt: true}, {ObjectID: "2"}}, page); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// FuzzPage: whatever an API answers, nothing panics, and the next page is below the base URL.
func FuzzPage(f *testing.F) {
	f.Add(`{"items": [{"thing": {"key": "a", "changed": "2027-01-15T08:00:00Z"}}], "meta": {"next": "/api/x?y"}, "more": true}`, `<?a>; rel="next"`, "")
	f.Add(`{"items": [], "meta": {"next": "//h"}}`, `<//h>; rel=next; a="`, "1800000000000000")
	f.Add(`[{"key": {}}]`, `<`, "x")
	f.Fuzz(func(t *testing.T, body, link, cursor string) {
		for kind := range pagings {
			l := newLists(t, "https://h.example/api", kind)
			page, next, err := l.ObjectPage(source, l.api, "own", "thing", cursor, http.Header{"Link": {link}}, []byte(body))
			if err != nil {
				continue
			}
			for _, one := range page {
				_, err := l.Snapshot(source, &provider.Snapshot{ObjectType: "thing", ObjectID: one.ObjectID, Body: one.Body})
				if dead := (*provider.Dead)(nil); err != nil && !errors.As(err, &dead) {
					t.Fatal(err)
				}
			}
			if call := l.ListObjects(source, l.api, "own", "thing", time.Time{}, time.Time{}, next); !strings.HasPrefix(call.Path, "/") || strings.Contains(call.Path, "//h") {
				t.Fatalf("%s: next %q: %+v", kind, next, call)
			}
		}
	})
}
