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

// exampleOf returns the example of a described API, with replaced texts: edits alternates old and
// new.
func exampleOf(t *testing.T, edits ...string) string {
	t.Helper()
	b, err := os.ReadFile(anyAPI)
	must(t, err)
	text := string(b)
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			t.Fatalf("%s has no %q", anyAPI, edits[i])
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	return text
}

var anyAPIEnv = environment("DATABASE_URL=postgres://x", "NATS_URL=nats://x", "THINGS_SECRET=secret of a test",
	"THINGS_API=https://api.example/base/", "THINGS_API_KEY=s3cret-key")

func TestDescribedAPI_yaml_becomesReader(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte(exampleOf(t, "rate: 20",
		"headers: {Api-Version: 'v-{version}'}\n      version: '7'")), anyAPIEnv)
	must(t, err)
	if text := c.String(); strings.Contains(text, "s3cret") || !strings.Contains(text, "cursor_expired") {
		t.Errorf("the text contains the key, or lacks settings of the section:\n%s", text)
	}
	e := c.Endpoints()[0]
	if e.API.BaseURL != "https://api.example/base" || e.API.Rate != 5 || e.API.Concurrency != 5 ||
		e.Reader.Lag() != time.Second {
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

// Variables describe an API in the same way as the file.
func TestDescribedAPI_variables_becomeReader(t *testing.T) {
	t.Parallel()
	const a = "POSTERN_SOURCES_A_API_"
	c := parse(t, declaredSource("hmac", "scheme: {header: X-S}"), a+"BASE_URL=https://api.example",
		a+"KEY_VALUE=k", a+"CONTROL=/me", a+"MISSING_STATUSES=410", a+"HEADERS=Api-Version=3",
		a+"OBJECTS=order", a+"OBJECTS_ORDER_GET=/orders/{id}", a+"OBJECTS_ORDER_LIST_PATH=/orders",
		a+"OBJECTS_ORDER_LIST_QUERY=since={since}")
	e := c.Endpoints()[0]
	if got := e.Reader.(provider.ObjectLister).Lists(e.Source, e.API, ""); !got["order"].ByChange {
		t.Errorf("lists %v", got)
	}
	if v := e.Reader.Answer(http.StatusNotFound, http.Header{}, nil); v.Kind == provider.Missing {
		t.Errorf("404 is %+v, but only 410 means missing", v)
	}
	for variable, want := range map[string]string{a + "MISSING_STATUSES=gone": "is not a whole number",
		a + "OBJECTS_ORDER_LIST_QUERY=since": "is not name=value"} {
		checkRejectedBy(t, declaredSource("hmac", "scheme: {header: X-S}"), []string{a + "OBJECTS=order", variable},
			want)
	}
}

// A provider with its own reader uses it; a provider without one has no reader.
func TestEndpoints_reader_matchesProvider(t *testing.T) {
	t.Parallel()
	for text, reads := range map[string]bool{stripeAPI + "{key: {value: k}}": true, stripeAPI: true,
		declaredSource("hmac", "scheme: {header: X-S}"): false} {
		c := parse(t, text)
		if e := c.Endpoints()[0]; (e.Reader != nil) != reads || (e.RefetchReader() != nil) != reads {
			t.Errorf("%s: reader %v", text, e.Reader)
		}
	}
}

// Settings that cannot work, or would send the key to the wrong place, are reported with their
// line.
func TestDescribedAPI_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	const path = "sources.things.api."
	type edits = []string
	const query = `query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`
	for name, tc := range map[string]struct {
		edits []string
		want  string
	}{
		"no address": {edits{`base_url: "${THINGS_API}"`, "timeout: 5s"}, "base_url: is not set"},
		"no control": {edits{"control: /me", "timeout: 5s"}, path + "control: is not set"},
		"control elsewhere": {edits{"control: /me", "control: https://other.example/me"},
			path + `control: "https://other.example/me" is not a path below base_url`},
		"control upwards": {edits{"control: /me", "control: /../me"}, "is not a path below base_url"},
		"control of an object": {edits{"control: /me", "control: '/me/{id}'"},
			`{id} is not allowed here; use {account}`},
		"version not sent": {edits{"rate: 20", "version: '7'"}, "version: is not used"},
		"key in no header": {edits{"X-Api-Key: {key}", "X-Api-Key: secret"},
			path + "header: \"X-Api-Key: secret\" is not a header with the key"},
		"key as the host":     {edits{"X-Api-Key: {key}", "Host: {key}"}, "is not a header with the key"},
		"no name of a header": {edits{"X-Api-Key: {key}", "X Api: {key}"}, "is not a header with the key"},
		"another credential": {edits{"rate: 20", "headers: {Authorization: x}"},
			path + "headers.Authorization: a credential is not allowed as a fixed header"},
		"key among headers": {edits{"rate: 20", "headers: {X-Other: '{key}'}"},
			"{key} is not allowed here; use {version}"},
		"line end in a header": {edits{"rate: 20", `headers: {X-Other: "a\nb"}`},
			"headers.X-Other: contains a line break"},
		"header of ours": {edits{"rate: 20", "headers: {Accept-Encoding: br}"},
			"headers.Accept-Encoding: cannot be set here"},
		"missing is forbidden": {edits{"statuses: [404]", "statuses: [403]"},
			path + "missing.statuses: 403 has another meaning"},
		"missing is anything": {edits{"statuses: [404], path: error.code, equals: no_such_thing",
			"statuses: [400]"}, "missing.statuses: 400 has many causes: set path"},
		"equals nothing": {edits{"path: error.code, equals: no_such_thing", "equals: no_such_thing"},
			"missing.path: is not set"},
		"expired when": {edits{"statuses: [400, 410], path", "path"}, "expired.statuses: is not set"},
		"get without id": {edits{`get: "/things/{id}"`, "get: /things"},
			"objects.thing.get: \"/things\" returns the same object for every id"},
		"no get": {edits{`get: "/things/{id}"`, ""}, "objects.thing.get: is not set"},
		"the second item": {edits{"item: data.thing", "item: data.1"},
			"objects.thing.item: \"data.1\" is not the first element of a list"},
		"a reference as a path": {edits{"id: key\n", "id: '{json:key}'\n"},
			"objects.thing.id: \"{json:key}\" is a reference, but a path is required: write key"},
		"no part in a path": {edits{"items: items", "items: a..b"}, "list.items: \"a..b\" is not a path"},
		"unknown unit": {edits{"{path: changed, unit: rfc3339}", "{path: changed, unit: us}"},
			"objects.thing.version.unit: \"us\" is not a known value"},
		"no version path": {edits{"{path: changed, unit: rfc3339}", "{unit: rfc3339}"},
			"objects.thing.version.path: is not set"},
		"a counter of times": {edits{"{path: changed, unit: rfc3339}", "{path: changed, unit: integer}"},
			"version.unit: events of thing are ordered by a time"},
		"a time of counters": {edits{`version: {from: "json:thing.changed", unit: rfc3339}`,
			`version: {from: "json:thing.changed", unit: integer}`}, "a number that cannot be compared with a time"},
		"deleted when": {edits{"id: key\n", "id: key\n          deleted: {equals: gone}\n"},
			"objects.thing.deleted.path: is not set"},
		"an offset": {edits{`after: "{cursor}"`, `after: "{offset}"`},
			"pages cannot be requested by number or offset"},
		"cursor goes nowhere": {edits{`after: "{cursor}", `, ""},
			"list.query: does not use the next page's {cursor}"},
		"cursor from nowhere": {edits{"next: {field: meta.next}", "next: {link: true}"},
			"list.next: does not find the {cursor}"},
		"two ways": {edits{"next: {field: meta.next}", "next: {field: meta.next, link: true}"},
			"list.next: sets more than one of"},
		"more of nothing": {edits{"next: {field: meta.next}", "next: {more: meta.more}"},
			"list.next: says whether another page exists"},
		"until without since": {edits{`since: "{since}", `, ""}, "contains {until} without {since}"},
		"limit of nothing":    {edits{"limit: 100", "partial: false"}, "list.limit: is not set"},
		"query is given twice": {edits{"path: /lists/field", "path: /lists/field?after=1"},
			"list.query.after: is given twice"},
		"misspelt": {edits{"items: items", "itmes: items"},
			"unknown field \"itmes\"; did you mean items?"},
		"no objects": {edits{"objects:\n        thing:", "others:\n        thing:"}, "unknown field"},
		"pages by number": {edits{`after: "{cursor}"`, `page: "{page}"`},
			`list.query.page: "{page}": pages cannot be requested by number or offset`},
		"window without time": {edits{query, "query: {after: x}", "limit: 100", "", "next: {field: meta.next}",
			"next: {window: true}"}, "list.query: does not contain {since}, which next.window needs"},
		"window without limit": {edits{query, "query: {since: '{since}'}", "limit: 100", "",
			"next: {field: meta.next}", "next: {window: true}"}, "list.limit: is not set: next.window needs it"},
		"window without version": {edits{"version: {path: changed, unit: rfc3339}", "", query,
			"query: {since: '{since}'}", "next: {field: meta.next}", "next: {window: true}"},
			"list.next.window: needs the object's time of change"},
		"two clocks": {edits{`version: {from: "json:thing.changed", unit: rfc3339}`, "",
			`type: "{json:type}"`, `{type: "{json:type}", occurred: {from: "json:at"}}`,
			"events:\n      key: \"{json:id}\"\n      ", "events: "}, "objects.thing.version: events of thing are " +
			"ordered by their time, and two clocks do not agree"},
		"objects of all accounts": {edits{`type: "{json:type}"`, `type: "{json:type}"` +
			"\n      account: '{json:shop}'"}, "objects.thing.list: does not contain an account, although the " +
			"source's events do"},
		"events without a path": {edits{"path: /events/field", "retention: 24h", "        retention: 720h\n", ""},
			path + "events.path: is not set"},
		"events of any time": {edits{`{since: "{since}", until: "{until}", limit`, `{since: "{since}", limit`},
			path + "events.query: does not contain both {since} and {until}"},
		"events of an account": {edits{"path: /events/field", "path: '/{account}/events'"},
			"{account} is not allowed here"},
		"events without a time": {edits{"at: {path: thing.changed, unit: rfc3339}", "time: s"},
			path + "events.at.path: is not set"},
		"events by a counter": {edits{"at: {path: thing.changed, unit: rfc3339}", "at: {path: n, unit: integer}"},
			path + `events.at.unit: "integer" is not a known value`},
		"events kept for ever": {edits{"retention: 720h", "retention: 9000h"}, path + "events.retention"},
		"an event's cursor": {edits{`limit: "{limit}", after: "{cursor}"}`, `limit: "{limit}"}`},
			path + "events.query: does not use the next page's {cursor}"},
		"events without names": {edits{`key: "{json:id}"`, "every_delivery: true"},
			path + "events.path: the source's events have no key in their body"},
		"events named by headers": {edits{`key: "{json:id}"`, `key: "{header:X-Id}"`},
			path + "events.path: the source's events.key is read from header:X-Id"},
		"types in headers": {edits{`type: "{json:type}"`, `type: ["{header:X-Type}", "{json:type}"]`},
			path + "events.path: the source's events.type is read from header:X-Type"},
		"events in lists": {edits{`key: "{json:id}"`, "split: events\n      key: '{json:id}'"},
			path + "events.path: the source's deliveries are lists of events"},
		"events in forms": {edits{`key: "{json:id}"`, "body: form\n      key: '{json:id}'"},
			path + "events.path: the source's deliveries are forms"},
	} {
		_, err := config.Parse([]byte(exampleOf(t, tc.edits...)), anyAPIEnv)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: want %q:\n%v", name, tc.want, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "line ")) {
			t.Errorf("%s: shows the key, or no line: %v", name, err)
		}
	}
	for text, want := range map[string]string{
		stripeAPI + "{key: {value: k}, objects: {thing: {get: '/{id}'}}}": "line 6: sources.a.api.objects: the API " +
			"of stripe is built in",
		stripeAPI + "{key: {value: k}, events: {path: /events}}": "line 6: sources.a.api.events: applies only to an " +
			"API that the section objects describes",
		stripeAPI + "{key: {value: k}, control: /me}": "line 6: sources.a.api.control: applies only to an " +
			"API that the section objects describes",
	} {
		checkRejected(t, text, want)
	}
}

// The documentation page on described APIs contains the tested example.
func TestDescribedAPI_exampleInDocs_isAccepted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/describe-another-api.md")
	must(t, err)
	_, section, _ := strings.Cut(exampleOf(t), "    api:\n")
	if !strings.Contains(string(page), "    api:\n"+section) {
		t.Errorf("docs/how-to/describe-another-api.md does not show the section api of %s", anyAPI)
	}
}
