package admin_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// description is the served OpenAPI document. Its results are closed: a member that the document
// does not describe is an error.
type description struct {
	document *openapi3.T
	paths    []describedPath
	mu       sync.Mutex // for schemas
	schemas  *jsonschema.Compiler
}

// describedPath is a path of the document, with a pattern of the addresses that it describes.
type describedPath struct {
	path    string
	names   []string
	address *regexp.Regexp
}

var (
	placeholder = regexp.MustCompile(`\{([a-z]+)\}`)
	routeParam  = regexp.MustCompile(`:([a-z]+)`)
)

// loadDescription returns the description of the API. It is the same for all tests.
var loadDescription = sync.OnceValues(func() (*description, error) {
	res := request(admin.New(admin.Options{}), http.MethodGet, "/api/v1/openapi.json", "localhost")
	document, err := openapi3.NewLoader().LoadFromData(res.Body.Bytes())
	if err != nil {
		return nil, err
	}
	if err := document.Validate(context.Background()); err != nil {
		return nil, err
	}
	content, err := jsonschema.UnmarshalJSON(res.Body)
	if err != nil {
		return nil, err
	}
	for _, schema := range content.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any) {
		schema.(map[string]any)["additionalProperties"] = false
	}
	d := &description{document: document, schemas: jsonschema.NewCompiler()}
	d.schemas.AssertFormat()
	if err := d.schemas.AddResource(documentURL, content); err != nil {
		return nil, err
	}
	for path := range document.Paths.Map() {
		p := describedPath{path: path}
		for _, m := range placeholder.FindAllStringSubmatch(path, -1) {
			p.names = append(p.names, m[1])
		}
		p.address = regexp.MustCompile("^" + placeholder.ReplaceAllString(path, "([^/]*)") + "$")
		d.paths = append(d.paths, p)
	}
	slices.SortFunc(d.paths, func(a, b describedPath) int { return len(a.names) - len(b.names) })
	return d, nil
})

const documentURL = "https://postern.example/openapi.json"

// check compares a response with the document, and an accepted request too. It returns the id of
// the operation, "" for a request to no documented route.
func (d *description) check(req *http.Request, body string, res *httptest.ResponseRecorder) (id string, err error) {
	for _, p := range d.paths {
		values := p.address.FindStringSubmatch(req.URL.EscapedPath())
		item := d.document.Paths.Value(p.path)
		if values == nil || item.GetOperation(req.Method) == nil {
			continue
		}
		sent := req.Clone(context.Background())
		sent.Body = io.NopCloser(strings.NewReader(body))
		in := &openapi3filter.RequestValidationInput{Request: sent, PathParams: map[string]string{},
			Route: &routers.Route{Spec: d.document, Path: p.path, PathItem: item, Method: req.Method,
				Operation: item.GetOperation(req.Method)},
			Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: true,
				SkipSettingDefaults: true, MultiError: true,
				AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
		for i, name := range p.names {
			if in.PathParams[name], err = url.PathUnescape(values[i+1]); err != nil {
				return "", err
			}
		}
		if res.Code == http.StatusOK {
			err = openapi3filter.ValidateRequest(context.Background(), in)
		}
		out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: res.Code,
			Header: res.Header(), Options: in.Options}
		out.SetBodyBytes(res.Body.Bytes())
		return in.Route.Operation.OperationID, errors.Join(err,
			openapi3filter.ValidateResponse(context.Background(), out), d.checkBody(in.Route, res))
	}
	return "", nil
}

// checkBody compares the body of a response with its schema. It reads the schema itself, because
// kin-openapi checks a schema with references by the rules of OpenAPI 3.0.
func (d *description) checkBody(r *routers.Route, res *httptest.ResponseRecorder) error {
	response := r.Operation.Responses.Status(res.Code)
	if response == nil || response.Value.Content.Get("text/event-stream") != nil {
		return nil // an error of ValidateResponse, or a stream, whose messages another test checks
	}
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D", "+", "%2B").Replace
	at := "#/paths/" + escape(r.Path) + "/" + strings.ToLower(r.Method) + "/responses/" + fmt.Sprint(res.Code)
	at = cmp.Or(response.Ref, at) + "/content/" + escape(res.Header().Get("Content-Type")) + "/schema"
	d.mu.Lock()
	schema, err := d.schemas.Compile(documentURL + at)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	body, err := jsonschema.UnmarshalJSON(bytes.NewReader(res.Body.Bytes()))
	if err != nil {
		return err
	}
	return schema.Validate(body)
}

// checkDescribed fails the test if the document does not describe a response.
func checkDescribed(t *testing.T, req *http.Request, body string, res *httptest.ResponseRecorder) (id string) {
	t.Helper()
	d, err := loadDescription()
	testkit.Must(t, err)
	if id, err = d.check(req, body, res); err != nil {
		t.Errorf("%s %s %s: %d %.1000s: %v", req.Method, req.URL, body, res.Code, res.Body, err)
	}
	return id
}

// The document is valid. It describes each route once, with an id of its own, and no other.
func TestOpenAPI_document_describesEveryRoute(t *testing.T) {
	t.Parallel()
	d, err := loadDescription()
	testkit.Must(t, err)
	described := map[string]string{}
	for path, item := range d.document.Paths.Map() {
		for method, operation := range item.Operations() {
			id := operation.OperationID
			if id == "" || described[id] != "" {
				t.Errorf("%s %s has the operation id %q, as %s", method, path, id, described[id])
			}
			described[id] = method + " " + path
		}
	}
	var served []string
	for _, r := range routes(t, admin.New(admin.Options{})) {
		if strings.HasPrefix(r.Path, "/api/v1/") {
			served = append(served, r.Method+" "+routeParam.ReplaceAllString(r.Path, "{$1}"))
		}
	}
	slices.Sort(served)
	if all := slices.Sorted(maps.Values(described)); !slices.Equal(all, served) {
		t.Errorf("described %q\nserved %q", all, served)
	}
}

// filled adds rows for every list to an instance in which every change is possible.
func (b *testBundle) filled(t *testing.T) {
	t.Helper()
	b.object(t, "stripe", "", "order", "7", true)
	b.object(t, "stripe", "", "order", "8", false)
	b.object(t, "shop", "x", "order", "9", false)
	b.object(t, "shop", "y", "order", "9", false)
	b.outcome(t, b.append(t, "stripe", "second"), versioning.Key{Source: b.known.Number["stripe"], Type: "order",
		ID: "7"}, "dead")
	b.db.Exec(t, `
		INSERT INTO staged_objects SELECT * FROM objects WHERE object_id = '8';
		UPDATE staged_objects SET state = '{"a": 2}', state_hash = '\x01', exact_hash = '\x01';
		INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers,
			verification, body) SELECT source, id, event_id, event_type, '', '\x01', now(), '{"a": ["b"]}', '{}', 'x'
			FROM events;
		INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
			VALUES (1, 'wrong_signature', 'seen', '', now(), '{}', '\xff', 1);
		INSERT INTO redactions (run, actor, reason, params, requested_by, events, objects, conflicts, rejections,
			began_at, updated_at, ended_at) VALUES (99, 'ada', 'why', '{}', 1, 0, 0, 0, 0, now(), now(), NULL);
		INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_by, requested_at,
			due, start_after, attempts, error, lease_owner, lease_until) VALUES
			(1, '', 'customer', 'b', 'ambiguous', '', now(), now(), 1790000000000001, 2, 'x', '', '-infinity');
		INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
			VALUES (1, '', 'events', now(), now(), 7, now());
		INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
			VALUES ('reconcile', '{}', '', '', 'done', '', '{}', now(), now(), now());
		INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at, versions_only,
			skipped_parts) VALUES (1, 1, '', 'order', 'done', now(), now(), true,
			'[{"part": "a", "reason": "b", "truncated": true}]'),
			(1, 1, '', 'customer', 'list', now(), now(), false, '[]');
		INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason, event_id) VALUES
			(1, (SELECT number FROM sources WHERE name = 'stripe'), '', 'order', '7', 'mirror_older',
				'[{"path": "state.a", "before": null, "after": 1}]', '', 1),
			(1, 1, '', 'order', '8', 'orphan', '[]', 'why', NULL);
		INSERT INTO spools (spool, location, drained_at, reported_at, deliveries, bytes)
			VALUES ('other', 'here:/spool', '-infinity', now(), NULL, NULL);
		INSERT INTO processes (id, kind, host, pid, version, admin_address, started_at, reported_at, not_ready,
			config_loaded_at, config_digest, config_problem, can_reprocess)
			VALUES ('one', 'gateway', 'here', 7, '1', '', now(), now(), 'no', now(), '', 'a typo', true);
		INSERT INTO verify_reports (stored_by, report) VALUES ('ada@here', '{"at": "2026-01-02T03:04:05Z",
			"checked": {"keys": 1}, "spools": [{"dir": "/spool", "files": [{"name": "a", "state": "damaged",
			"oldest": "2026-01-02T03:04:05Z"}]}], "waiting": [{"work": "events", "count": 1,
			"since": "2026-01-02T03:04:05Z", "seconds": 1.5}], "notes": ["a note"], "findings": [{"kind":
			"key_differs", "count": 2, "means": "x", "remedy": "y"}]}');
		INSERT INTO effects OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(e, '{"effect": 99,
			"key": "removed:1", "rule": "removed"}')).* FROM effects e WHERE e.effect = 1;
		INSERT INTO activity_minutes (minute, source, stored, applied)
			VALUES (floor(extract(epoch FROM now()) / 60), 1, 2, 1);
		INSERT INTO source_types VALUES (1, 'a', now() - interval '9 days', now() - interval '5 hours', 20),
			(1, 'b', now(), now(), 1);
		INSERT INTO activity_secrets VALUES (1, 'a', floor(extract(epoch FROM now()) / 3600), 3, now());
		INSERT INTO activity_hours (hour, source, stored, applied)
			VALUES (floor(extract(epoch FROM now()) / 3600), 1, 2, 1)`)
}

// reads are addresses of the routes that only read, except the comparison of a rebuild. Run 1 is an
// object scan.
var reads = []string{"/summary", "/sources", "/sources/stripe", "/sources/shop", "/source-types?silent=true",
	"/source-types", "/me", "/processes", "/activity", "/activity?by_source=true&step=hour&since=2h", "/events",
	"/events?status=dead&type=order.*&limit=1&since=1h&until=2099-01-01&account=",
	"/events/second", "/find?q=second", "/conflicts", "/objects", "/objects?ambiguous=true", "/objects/stripe/order/7",
	"/objects/stripe/order/8", "/objects/stripe/invoice/in_1/history", "/objects/stripe/order/7/history",
	"/objects/stripe/invoice/in_1/history/diff?from=evt_1", "/objects/stripe/invoice/in_2/history/diff?to=evt_2",
	"/objects/stripe/invoice/in_1/at?time=2099-01-01", "/objects/stripe/order/7/differences",
	"/changes", "/changes?states=false", "/changes?feed_cursor=r", "/feed-cursors", "/feed-cursors/r",
	"/outcomes?run=live&status=dead", "/rejections", "/rejections/2",
	"/rejections/groups", "/failures?status=dead&since=1h", "/redactions",
	"/audit", "/retention", "/runs", "/runs/1", "/runs/1/drift", "/runs/1/differences",
	"/runs/1/differences?kind=orphan&limit=1", "/schedules", "/schedules/nightly",
	"/watermarks", "/refetches", "/effects", "/effects/1", "/effects/3", "/effects/3/data", "/effects/5",
	"/effects/1/requests", "/effects/3/requests",
	"/effects/backtest?rule=receipt&since=2020-01-01", "/effects/rules",
	"/effects/rules/receipt", "/effects/rules/removed", "/stream", "/stream/republish-passes/1", "/spools",
	"/spools/other", "/doctor", "/reports/verify", "/openapi.json"}

// everything is the API of a process that has sources, rules and a stream.
func (b *testBundle) everything(t *testing.T) http.Handler {
	t.Helper()
	conn, err := stream.Connect(stream.Options{URL: testkit.JetStream(t).URL, Name: t.Name(),
		Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	testkit.Eventually(t, 30*time.Second, func() error { return conn.Ensure(t.Context(), stream.DefaultLimits) })
	o := b.configured(t)
	o.Stream, o.Reprocessor = conn, b.reprocessor(t)
	return admin.New(o)
}

// The document describes the results of all routes, read from a database that has rows for each.
func TestOpenAPI_everyRoute_respondsAsDescribed(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.moreEffects(t)
	b.filled(t)
	b.invoices(t, 1, 2)
	b.changed(t, "stripe", "plan", "p")
	h, got := b.everything(t), map[string]bool{}
	do := func(method, path, body string) {
		path = strings.ReplaceAll(path, "RUN", b.db.QueryStrings(t, `SELECT max(run)::text FROM runs`)[0])
		res, req := send(h, method, path, body, nil)
		if id := checkDescribed(t, req, body, res); res.Code != http.StatusOK {
			t.Errorf("%s: %s", path, responseText(res))
		} else if strings.Contains(res.Body.String(), `"items":[]`) {
			t.Errorf("%s returns no item to check", path)
		} else {
			got[id] = true
		}
	}
	for _, c := range audited {
		if c.route == "/rebuilds" {
			do(http.MethodPost, "/replays", `{"preview": true, "exact": true, "mode": "force"}`)
			do(http.MethodPost, "/replays", `{"dry_run": true, "source": "stripe", "type": "invoice.updated"}`)
			do(http.MethodPost, "/retries", `{"preview": true, "event": "k", "run": "live"}`)
		}
		do(http.MethodPost, c.path, c.body)
		if c.route == "/rebuilds" {
			do(http.MethodGet, "/rebuilds/RUN/compare", "")
		}
	}
	do(http.MethodPut, "/feed-cursors/r", `{"after": "", "stalls_after": "15m"}`)
	for _, path := range reads {
		do(http.MethodGet, path, "")
	}
	got[b.checkStream(t)] = true
	d, err := loadDescription()
	testkit.Must(t, err)
	for path, item := range d.document.Paths.Map() {
		for method, operation := range item.Operations() {
			if !got[operation.OperationID] {
				t.Errorf("%s %s: no result was checked", method, path)
			}
		}
	}
}

// The document requires the parameters without which a change is invalid. Whether some of the
// others are needed depends on the effect, or on the other name of a parameter.
func TestOpenAPI_requiredParameters_equalHandlers(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.moreEffects(t)
	d, err := loadDescription()
	testkit.Must(t, err)
	b.eachChange(t, func(c changed) {
		documented := d.document.Paths.Value("/api/v1" + routeParam.ReplaceAllString(c.route, "{$1}"))
		required := documented.Post.RequestBody.Value.Content.Get("application/json").Schema.Value.Required
		var members map[string]any
		testkit.Must(t, json.Unmarshal([]byte(c.body), &members))
		b.db.Exec(t, revokeAudit)
		for name := range members {
			without := maps.Clone(members)
			delete(without, name)
			body, err := json.Marshal(without)
			testkit.Must(t, err)
			status, p := b.post(t, c.path, string(body))
			if want := slices.Contains(required, name); (status == http.StatusBadRequest) != want &&
				!slices.Contains([]string{"type", "partial", "captured"}, name) {
				t.Errorf("%s without %s, required: %t: %d %v", c.route, name, want, status, p)
			}
		}
		b.db.Exec(t, grantAudit)
		if status, p := b.post(t, c.path, c.body); status != http.StatusOK {
			t.Errorf("%s: %d %v", c.route, status, p)
		}
	})
}

// send sends a request to a path below /api/v1.
func send(h http.Handler, method, path, body string, header http.Header) (*httptest.ResponseRecorder, *http.Request) {
	req := httptest.NewRequest(method, "http://127.0.0.1:8081/api/v1"+path, strings.NewReader(body))
	if method != http.MethodGet {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, header)
	req.Host = "127.0.0.1:8081"
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res, req
}

// The document describes the problems, each with its status.
func TestOpenAPI_problems_areDescribed(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.filled(t)
	b.append(t, "shop", "k")
	guarded, reader, _ := b.guarded(t, admin.Options{RequireTokens: true})
	key := http.Header{"Idempotency-Key": {`"a"`}}
	problem := func(name string) string { return `"type":"urn:postern:problem:` + name + `"` }
	for _, c := range []struct {
		want, method, path, body string
		header                   http.Header
		sql                      string // executed before
	}{
		{problem("foreign-host"), "GET", "/events", "", http.Header{"Host": {"evil.example"}}, ""},
		{problem("token"), "GET", "/events", "", http.Header{"Authorization": {"Bearer x"}}, ""},
		{problem("role"), "POST", "/replays", "{}", http.Header{"Authorization": {"Bearer " + reader}}, ""},
		{problem("idempotency-key"), "POST", "/replays", "{}", http.Header{"Idempotency-Key": {`"`}}, ""},
		{`"run":`, "POST", "/replays", `{"source": "stripe"}`, key, ""},
		{problem("key-reused"), "POST", "/replays", `{"source": "shop"}`, key, ""},
		{problem("invalid"), "GET", "/events?limit=0", "", nil, ""},
		{problem("invalid"), "POST", "/replays", "[]", nil, ""},
		{problem("invalid"), "GET", "/effects/backtest?rule=receipt&since=1h", "", nil, ""},
		{problem("not-found"), "GET", "/events/none", "", nil, ""},
		{problem("not-found"), "POST", "/runs/77/pause", "{}", nil, ""},
		{problem("several"), "GET", "/events/k", "", nil, ""},
		{problem("several"), "GET", "/objects/shop/order/9", "", nil, ""},
		{problem("several"), "POST", "/refetches", `{"source": "shop", "type": "order", "object_id": "9"}`, nil, ""},
		{`"type":"about:blank"`, "POST", "/replays", "a=b", http.Header{"Content-Type": {"text/plain"}}, ""},
		{problem("unavailable"), "POST", "/refetches", `{"source": "stripe", "type": "order", "object_id": "8"}`, nil,
			`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'the disk is full'
				USING ERRCODE = '53100'; END$$;
				CREATE TRIGGER fail BEFORE INSERT ON audit FOR EACH ROW EXECUTE FUNCTION fail()`},
		{problem("internal"), "GET", "/spools", "", nil, `ALTER TABLE spools RENAME TO elsewhere`},
	} {
		h := b.handler
		if c.header.Get("Authorization") != "" {
			h = guarded
		}
		b.db.Exec(t, c.sql)
		res, req := send(h, c.method, c.path, c.body, c.header)
		checkDescribed(t, req, c.body, res)
		if !strings.Contains(res.Body.String(), c.want) {
			t.Errorf("%s %s: %s, want %s", c.method, c.path, responseText(res), c.want)
		}
	}
}

// A member that is not described, one of another type and one that is missing are noticed, so that
// the other tests of the document fail when they must.
func TestOpenAPI_wrongResponses_areNoticed(t *testing.T) {
	t.Parallel()
	d, err := loadDescription()
	testkit.Must(t, err)
	for body, wrong := range map[string]bool{
		`{"items": [], "next_cursor": null}`:                                             false,
		`{"items": [], "next_cursor": null, "searched_back_to": "2026-01-02T03:04:05Z"}`: false,
		`{"items": [], "next_cursor": null, "total": 1}`:                                 true,
		`{"items": [], "next_cursor": 1}`:                                                true,
		`{"items": null, "next_cursor": null}`:                                           true,
		`{"items": []}`:                                                                  true,
		`{"items": [{}], "next_cursor": null}`:                                           true,
		`{"items": [], "next_cursor": null, "searched_back_to": "yesterday"}`:            true,
	} {
		res := httptest.NewRecorder()
		res.Header().Set("Content-Type", "application/json")
		fmt.Fprint(res, body)
		id, err := d.check(httptest.NewRequest(http.MethodGet, "/api/v1/events", nil), "", res)
		if id != "listEvents" || (err != nil) != wrong {
			t.Errorf("%s: %s %v, want an error: %t", body, id, err, wrong)
		}
	}
}
