package rest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const key = "NoKeyOfAnybody-S3cret"

var (
	source = &provider.Source{Name: "things", Account: "own"}
	api    = &provider.API{BaseURL: "https://api.example/base",
		Key: provider.Secret{Name: "api.key", Value: []byte(key)}, Version: "7"}
)

// request parses a request with every name.
func request(t testing.TB, text string, query ...string) rest.Request {
	t.Helper()
	names := []string{"id", "account", "limit", "cursor", "since", "until"}
	r, err := rest.ParseRequest(text, names...)
	for i := 0; i < len(query) && err == nil; i += 2 {
		err = r.SetQuery(query[i], query[i+1], names...)
	}
	testkit.Must(t, err)
	return r
}

func template(t testing.TB, text string) rest.Template {
	t.Helper()
	out, err := rest.ParseTemplate(text, "key", "key_base64", "version")
	testkit.Must(t, err)
	return out
}

// reader returns a reader of the type thing, after an edit.
func reader(t testing.TB, edit func(*rest.Spec, *rest.Type)) *rest.Reader {
	t.Helper()
	spec := rest.Spec{Header: template(t, "Authorization: Bearer {key}"),
		Headers:  map[string]rest.Template{"Api-Version": template(t, "v{version}")},
		KeyCheck: request(t, "/me"), Missing: rest.ResponseMatch{Statuses: []int{404, 410}}, Lag: time.Second,
		Objects: map[string]*rest.Type{}}
	thing := rest.Type{Get: request(t, "/things/{id}"), ID: "id", Version: &rest.Version{Path: "updated",
		Unit: declared.RFC3339}}
	if edit != nil {
		edit(&spec, &thing)
	}
	spec.Objects["thing"] = &thing
	return rest.New(spec)
}

func TestFetch_types_makeCalls(t *testing.T) {
	t.Parallel()
	plain := reader(t, nil)
	named := reader(t, func(_ *rest.Spec, of *rest.Type) { of.Get = request(t, "/{account}/things?id={id}&all=true") })
	for _, c := range []struct {
		of               *rest.Reader
		account, typ, id string
		want             string // "" means that there is no call
	}{
		{plain, "own", "thing", "a", "/things/a?"},
		{plain, "own", "thing", "a/../b?c=d#e%2F", "/things/a%2F..%2Fb%3Fc=d%23e%252F?"},
		{plain, "own", "thing", "..", ""},
		{plain, "own", "thing", ".", ""},
		{plain, "own", "thing", "", ""},
		{plain, "own", "other", "a", ""},
		{plain, "another", "thing", "a", ""},
		{plain, "", "thing", "a", ""},
		{named, "another", "thing", "..", "/another/things?all=true&id=.."},
		{named, "a/b", "thing", "c&d", "/a%2Fb/things?all=true&id=c%26d"},
		{named, "", "thing", "a", ""},
		{named, "..", "thing", "a", ""},
	} {
		call, ok := c.of.Fetch(source, api, c.account, c.typ, c.id)
		if got := call.Path + "?" + call.Query.Encode(); ok != (c.want != "") || ok &&
			(got != c.want || call.Account != c.account) {
			t.Errorf("account %q, %s %q: %s, %v; want %s", c.account, c.typ, c.id, got, ok, c.want)
		}
	}
	if call := plain.CredentialCheck(api, "own"); call.Path != "/me" || call.Account != "own" {
		t.Errorf("credential check %+v", call)
	}
}

func TestAuthorize_headers_areSent(t *testing.T) {
	t.Parallel()
	h := http.Header{"Api-Version": {"old"}}
	reader(t, nil).Authorize(api, h)
	if diff := cmp.Diff(http.Header{"Accept": {"application/json"}, "Api-Version": {"v7"},
		"Authorization": {"Bearer " + key}}, h); diff != "" {
		t.Error(diff)
	}
	basic := reader(t, func(s *rest.Spec, _ *rest.Type) { s.Header = template(t, "Authorization: Basic {key_base64}") })
	basic.Authorize(&provider.API{Key: provider.Secret{Value: []byte("user:password")}}, h)
	if h.Get("Authorization") != "Basic dXNlcjpwYXNzd29yZA==" { // computed independently, as in RFC 7617
		t.Error(h)
	}
}

func TestAnswer_responses_giveVerdict(t *testing.T) {
	t.Parallel()
	r := reader(t, func(s *rest.Spec, _ *rest.Type) {
		s.Missing = rest.ResponseMatch{Statuses: []int{404, 422}, Path: "error.code",
			Equals: "none"}
		s.Expired = rest.ResponseMatch{Statuses: []int{400}, Path: "error.cursor"}
	})
	for _, c := range []struct {
		status int
		body   string
		want   provider.VerdictKind
	}{
		{200, `{}`, provider.Found}, {200, ` [] `, provider.Found}, {200, `"x"`, provider.Failure},
		{200, ``, provider.Failure}, {204, ``, provider.Failure}, {200, `<html>`, provider.Failure},
		{404, `{"error": {"code": "none"}}`, provider.Missing}, {404, `{"error": {"code": "no_such_path"}}`,
			provider.Failure}, {404, `<html>`, provider.Failure},
		{422, `{"error": {"code": "none"}}`, provider.Missing}, {410, `{"error": {"code": "none"}}`, provider.Failure},
		{200, `{"error": {"code": "none"}}`, provider.Found},
		{400, `{"error": {"cursor": "x"}}`, provider.Expired}, {400, `{"error": {"cursor": {}}}`, provider.Expired},
		{400, `{"error": {"cursor": false}}`, provider.Failure},
		{400, `{"error": {"cursor": 0}}`, provider.Failure}, {400, `{"error": {"cursor": ""}}`, provider.Failure},
		{400, `{"error": {}}`, provider.Failure},
		{401, `{}`, provider.Rejected}, {403, `{}`, provider.Rejected}, {429, `{}`, provider.Throttled},
		{503, `{}`, provider.Failure}, {301, ``, provider.Failure},
	} {
		v := r.Answer(c.status, http.Header{"Retry-After": {"2"}}, []byte(c.body))
		if v.Kind != c.want || (v.Detail == "") != (v.Kind == provider.Found) || v.Kind == provider.Throttled &&
			v.Wait != 2*time.Second {
			t.Errorf("%d %s: %+v, want %s", c.status, c.body, v, c.want)
		}
	}
	for _, status := range []int{404, 410} {
		if v := reader(t, nil).Answer(status, http.Header{}, []byte("gone")); v.Kind != provider.Missing {
			t.Errorf("%d: %+v", status, v)
		}
	}
}

func TestSnapshot_bodies_giveObservation(t *testing.T) {
	t.Parallel()
	const second, at = int64(1_000_000), int64(1_800_000_000_000_000)
	nested := func(of *rest.Type) { of.Item, of.ID = "data.0", "thing.id" }
	counter := func(of *rest.Type) { of.Version = &rest.Version{Path: "n", Unit: declared.Integer} }
	mayNotAdvance := func(of *rest.Type) {
		of.Version.MayNotAdvance, of.IgnoredPaths, of.Deleted = true, []string{"seen"},
			rest.Condition{Path: "status", Equals: "gone"}
	}
	type observation = provider.Observation
	for _, c := range []struct {
		edit func(*rest.Type)
		body string // "" means that the object is missing
		want observation
		err  string
	}{
		{nil, `{"id": 5, "updated": "2027-01-15T08:00:00.25Z"}`, observation{At: at, HasAt: true, OwnVersion: true,
			Unit: second}, ""},
		{nil, `{"id": "5", "updated": "2027-01-15T08:00:00Z"}`, observation{At: at, HasAt: true, OwnVersion: true,
			Unit: second}, ""},
		// not changed since it was created: ordered by the start of the refetch
		{nil, `{"id": "5", "updated": null}`, observation{Unit: second}, ""},
		{nil, ``, observation{Unit: second, Deleted: true}, ""},
		{nested, `{"data": [{"thing": {"id": "5"}, "updated": "2027-01-15T08:00:00Z"}], "more": 1}`,
			observation{At: at, HasAt: true, OwnVersion: true, Unit: second}, ""},
		{mayNotAdvance, `{"id": "5", "updated": "2027-01-15T08:00:00Z", "status": "gone"}`,
			observation{At: at, HasAt: true, OwnVersion: true, Unit: second, MayNotAdvance: true, Deleted: true,
				IgnoredPaths: []string{"seen"}}, ""},
		{counter, `{"id": "5", "n": 7}`, observation{At: 7, HasAt: true, OwnVersion: true, Unit: 1}, ""},
		{counter, ``, observation{Unit: second, Deleted: true, Partial: "not found, and an integer version " +
			"cannot express that"}, ""},
		{counter, `{"id": "5", "n": "x"}`, observation{}, "has no integer at \"n\""},
		{nil, `{"id": "6", "updated": "2027-01-15T08:00:00Z"}`, observation{},
			`requested the thing 5, and the API returned one whose id is "6"`},
		{nil, `{"updated": "2027-01-15T08:00:00Z"}`, observation{}, "the API returned one whose id is \"\""},
		{nested, `{"data": []}`, observation{}, `the API returned no object at "data.0"`},
		{nil, `[{"id": "5"}]`, observation{}, "the API returned no object: is"},
		{nil, `{"id": "5"`, observation{}, "the response is not JSON"},
	} {
		r := reader(t, func(_ *rest.Spec, of *rest.Type) {
			if c.edit != nil {
				c.edit(of)
			}
		})
		o, err := r.Snapshot(source, &provider.Snapshot{Account: "own", ObjectType: "thing", ObjectID: "5",
			Missing: c.body == "", Body: []byte(c.body)})
		if dead := (*provider.Dead)(nil); c.err != "" {
			if !errors.As(err, &dead) || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.body, err, c.err)
			}
			continue
		}
		if state := string(o.State.Raw()); err != nil || (state == "") != (c.body == "") ||
			!strings.Contains(c.body, state) {
			t.Errorf("%s: state %s, %v", c.body, state, err)
		}
		o.State, c.want.Account, c.want.ObjectType, c.want.ObjectID, c.want.Rank = nil, "own", "thing", "5", 1
		if diff := cmp.Diff(c.want, o); diff != "" {
			t.Errorf("%s:\n%s", c.body, diff)
		}
	}
	_, err := reader(t, nil).Snapshot(source, &provider.Snapshot{ObjectType: "other", ObjectID: "5"})
	if dead := (*provider.Dead)(nil); err == nil || errors.As(err, &dead) {
		t.Errorf("a type that is not configured yet: %v", err)
	}
}

// No error contains the key, even if the API's response is cut within it.
func TestSnapshot_errors_maskTheKey(t *testing.T) {
	t.Parallel()
	for before := range 100 {
		text := strings.Repeat("x", before) + key
		_, err := reader(t, nil).Snapshot(source, &provider.Snapshot{Account: "own", ObjectType: "thing", ObjectID: "5",
			Body: fmt.Appendf(nil, `{"id": %q}`, text), API: api})
		if err == nil || strings.Contains(err.Error(), key[:4]) {
			t.Fatalf("another object's id, with the key after %d characters: %v", before, err)
		}
		l := &rest.List{Page: rest.Page{Items: "d", Next: rest.Next{Address: "next"}}}
		if _, _, err := pageOf(t, l, "", http.Header{}, fmt.Sprintf(`{"d": [], "next": "https://%s/"}`,
			text)); err == nil || strings.Contains(err.Error(), key[:4]) {
			t.Fatalf("another host, with the key after %d characters: %v", before, err)
		}
	}
}

// An object from a list reads like the response to its own call.
func TestObjectPage_listedObject_readsAsFetched(t *testing.T) {
	t.Parallel()
	for _, item := range []string{"", ".", "data", "data.thing", "0", "data.0", `a"b.0.c`} {
		r := reader(t, func(_ *rest.Spec, of *rest.Type) {
			of.Item = item
			of.List = &rest.List{Page: rest.Page{Path: request(t, "/things"), Items: "items", Item: "in"}}
		})
		page, next, err := r.ObjectPage(source, api, "own", "thing", "", http.Header{},
			[]byte(`{"items": [{"in": {"id": "x", "updated": "2027-01-15T08:00:00Z"}}]}`))
		if err != nil || len(page) != 1 || next != "" || page[0].ObjectID != "x" || !json.Valid(page[0].Body) {
			t.Fatalf("item %q: %+v, %q, %v", item, page, next, err)
		}
		o, err := r.Snapshot(source, &provider.Snapshot{ObjectType: "thing", ObjectID: "x", Body: page[0].Body})
		if err != nil || !o.OwnVersion || string(o.State.Raw()) != `{"id": "x", "updated": "2027-01-15T08:00:00Z"}` {
			t.Errorf("item %q: %s: %+v, %v", item, page[0].Body, o, err)
		}
	}
}

func TestParseRequest_templates_areReadOrRejected(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/a?x={id":             "not closed",
		"/a?x=}":               "closes nothing",
		"/a?x={nobody}":        "{nobody} is not allowed here; use {id}",
		"/a?x={page}":          "cannot be requested by number or offset",
		"a":                    "not a path below base_url",
		"//other.example/a":    "not a path below base_url",
		"/a/../b":              "not a path below base_url",
		"/a/%2e%2e/b":          "not a path below base_url",
		"/a#b":                 "not a path below base_url",
		"/a%zz":                "not a path below base_url",
		"/a?x=%zz":             "not a valid query",
		"/a?x=1&x=2":           "x is given twice",
		`/a?f={{"x":"{id}"}}`:  "",
		"/a/{id}.json?b={id}&": "",
	} {
		r, err := rest.ParseRequest(text, "id")
		if want == "" && (err != nil || !r.Names("id")) || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
