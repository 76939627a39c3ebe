package config_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
)

const anyAPI = "../../examples/any-api/postern.yaml"

// exampleOf is the example of a described API, with some text of it replaced by another.
func exampleOf(t *testing.T, old, new string) string {
	t.Helper()
	b, err := os.ReadFile(anyAPI)
	if err != nil || !strings.Contains(string(b), old) {
		t.Fatalf("%s has no %q (%v)", anyAPI, old, err)
	}
	return strings.Replace(string(b), old, new, 1)
}

var anyAPIEnv = environment("DATABASE_URL=postgres://x", "NATS_URL=nats://x", "THINGS_SECRET=s", "THINGS_API=https://api.example/base/", "THINGS_API_KEY=s3cret-key")

func TestDescribedAPI(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte(exampleOf(t, "rate: 20", "headers: {Api-Version: 'v-{version}'}\n      version: '7'")), anyAPIEnv)
	if err != nil {
		t.Fatal(err)
	}
	if text := c.String(); strings.Contains(text, "s3cret") || !strings.Contains(text, "cursor_expired") {
		t.Errorf("printed with the key, or without what the section says:\n%s", text)
	}
	e := c.Endpoints()[0]
	if e.API.BaseURL != "https://api.example/base" || e.API.Rate != 5 || e.API.Concurrency != 5 || e.Reader.Lag() != time.Second {
		t.Errorf("%+v, lag %s", e.API, e.Reader.Lag())
	}
	h := http.Header{}
	e.Reader.Authorize(e.API, h)
	if h.Get("X-Api-Key") != "s3cret-key" || h.Get("Api-Version") != "v-7" || h.Get("Authorization") != "" {
		t.Errorf("headers %v", h)
	}
	call, ok := e.Reader.Fetch(e.Source, e.API, "", "thing", "a/b")
	if !ok || call.Path != "/things/a%2Fb" {
		t.Errorf("%+v, %v", call, ok)
	}
	lists := e.Reader.(provider.ObjectLister).Lists(e.Source, e.API, "")
	if lists["thing"] != (provider.List{ByChange: true, Lag: time.Second}) || len(lists) != 1 {
		t.Errorf("lists %+v", lists)
	}
}

// A provider that reads its API itself does so, and one that cannot has no reader.
func TestReaderOfASource(t *testing.T) {
	t.Parallel()
	for text, reads := range map[string]bool{stripeAPI + "{key: {value: k}}": true, stripeAPI: true, declaredSource("hmac", "scheme: {header: X-S}"): false} {
		c, err := config.Parse([]byte(text), environment())
		if err != nil {
			t.Fatal(err)
		}
		if e := c.Endpoints()[0]; (e.Reader != nil) != reads || (e.Looker() != nil) != reads {
			t.Errorf("%s: reader %v", text, e.Reader)
		}
	}
}

// What could not work, or would send the key where it must not go, is said with its place before a process starts.
func TestDescribedAPIProblems(t *testing.T) {
	t.Parallel()
	const path = "sources.things.api."
	for name, tc := range map[string]struct{ old, new, want string }{
		"no address":             {`base_url: "${THINGS_API}"`, "timeout: 5s", "base_url: is not set"},
		"no control":             {"control: /me", "timeout: 5s", path + "control: is not set"},
		"control elsewhere":      {"control: /me", "control: https://other.example/me", path + `control: "https://other.example/me" is no path below base_url`},
		"control upwards":        {"control: /me", "control: /../me", "is no path below base_url"},
		"control of an object":   {"control: /me", "control: '/me/{id}'", `{id} cannot stand here, but {account}`},
		"version not sent":       {"rate: 20", "version: '7'", "version: is sent nowhere"},
		"key in no header":       {"X-Api-Key: {key}", "X-Api-Key: secret", path + "header: \"X-Api-Key: secret\" is no header with the key"},
		"key as the host":        {"X-Api-Key: {key}", "Host: {key}", "is no header with the key"},
		"no name of a header":    {"X-Api-Key: {key}", "X Api: {key}", "is no header with the key"},
		"another credential":     {"rate: 20", "headers: {Authorization: x}", path + "headers.Authorization: a credential is no fixed header"},
		"key among headers":      {"rate: 20", "headers: {X-Other: '{key}'}", "{key} cannot stand here, but {version}"},
		"line end in a header":   {"rate: 20", `headers: {X-Other: "a\nb"}`, "headers.X-Other: holds a line end"},
		"header of ours":         {"rate: 20", "headers: {Accept-Encoding: br}", "headers.Accept-Encoding: is no header that can be set here"},
		"missing is forbidden":   {"statuses: [404]", "statuses: [403]", path + "missing.statuses: 403 says something else"},
		"missing is anything":    {"statuses: [404], path: error.code, equals: no_such_thing", "statuses: [400]", "missing.statuses: 400 has many causes: set path"},
		"equals nothing":         {"path: error.code, equals: no_such_thing", "equals: no_such_thing", "missing.path: is not set"},
		"expired when":           {"statuses: [400, 410], path", "path", "expired.statuses: is not set"},
		"get without id":         {`get: "/things/{id}"`, "get: /things", "objects.thing.get: \"/things\" reads the same whatever object is asked for"},
		"no get":                 {`get: "/things/{id}"`, "", "objects.thing.get: is not set"},
		"the second item":        {"item: data.thing", "item: data.1", "objects.thing.item: \"data.1\" is not the first of a list"},
		"a reference as a path":  {"id: key\n", "id: '{json:key}'\n", "objects.thing.id: \"{json:key}\" is written as a reference, and a path is wanted: write key"},
		"no part in a path":      {"items: items", "items: a..b", "list.items: \"a..b\" is no path"},
		"unknown unit":           {"{path: changed, unit: rfc3339}", "{path: changed, unit: us}", "objects.thing.version.unit: \"us\" is not known"},
		"no version path":        {"{path: changed, unit: rfc3339}", "{unit: rfc3339}", "objects.thing.version.path: is not set"},
		"a counter of times":     {"{path: changed, unit: rfc3339}", "{path: changed, unit: integer}", "version.unit: events of thing are ordered by a time"},
		"a time of counters":     {`version: {from: "json:thing.changed", unit: rfc3339}`, `version: {from: "json:thing.changed", unit: integer}`, "a number that no time compares with"},
		"two clocks":             {`version: {from: "json:thing.changed", unit: rfc3339}`, "", "objects.0.version: is not set"},
		"deleted when":           {"id: key\n", "id: key\n          deleted: {equals: gone}\n", "objects.thing.deleted.path: is not set"},
		"pages by number":        {`after: "{cursor}"`, `page: "{page}"`, "list.query.after: \"{page}\""},
		"an offset":              {`after: "{cursor}"`, `after: "{offset}"`, "pages are not asked for by number or offset"},
		"cursor goes nowhere":    {`after: "{cursor}", `, "", "list.query: sends the next page's place nowhere"},
		"cursor from nowhere":    {"next: {field: meta.next}", "next: {link: true}", "list.next: finds no {cursor}"},
		"two ways":               {"next: {field: meta.next}", "next: {field: meta.next, link: true}", "list.next: says more than one of"},
		"more of nothing":        {"next: {field: meta.next}", "next: {more: meta.more}", "list.next: says whether there is another page"},
		"until without since":    {`since: "{since}", `, "", "names {until} without {since}"},
		"window without time":    {`after: "{cursor}", since: "{since}", until: "{until}"},`, "},", "list.limit"},
		"limit of nothing":       {"limit: 100", "partial: false", "list.limit: is not set"},
		"window without version": {"version: {path: changed, unit: rfc3339}\n          volatile: [seen]\n          list:", "list:", ""},
		"query comes twice":      {"path: /lists/field", "path: /lists/field?after=1", "list.query.after: comes twice"},
		"misspelt":               {"items: items", "itmes: items", "unknown field \"itmes\"; did you mean items?"},
		"no objects":             {"objects:\n        thing:", "others:\n        thing:", "unknown field"},
	} {
		if name == "pages by number" {
			tc.want = `list.query.page: "{page}": pages are not asked for by number or offset`
		}
		if name == "window without time" {
			tc = struct{ old, new, want string }{`{limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}
            limit: 100
            items: items
            item: thing
            next: {field: meta.next}`, "{}\n            next: {window: true}", "list.query: asks for no time, by which next.window goes on"}
		}
		if name == "window without version" {
			tc = struct{ old, new, want string }{`          version: {path: changed, unit: rfc3339}
          volatile: [seen]
          list:
            path: /lists/field
            query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}
            limit: 100
            items: items
            item: thing
            next: {field: meta.next}`, "          list: {path: /l, query: {s: '{since}'}, limit: 3, next: {window: true}}", "list.next.window: goes by the object's time of change"}
		}
		_, err := config.Parse([]byte(exampleOf(t, tc.old, tc.new)), anyAPIEnv)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: want %q:\n%v", name, tc.want, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "line ")) {
			t.Errorf("%s: shows the key, or no line: %v", name, err)
		}
	}
	for text, want := range map[string]string{
		stripeAPI + "{key: {value: k}, objects: {thing: {get: '/{id}'}}}": "line 6: sources.a.api.objects: the API of stripe is read in its own way",
		stripeAPI + "{key: {value: k}, control: /me}":                     "line 6: sources.a.api.control: is for an API whose objects are described",
	} {
		if _, err := config.Parse([]byte(text), environment()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", text, want, err)
		}
	}
}
