package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/net/html"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// secretCanary is the signing secret of the source stripe. No response may contain it.
const secretCanary = "whsec_canaryOfTheConsolesTests"

// envConfig is the configuration of the process that serves the console.
const envConfig = `
database: {url: postgres://postern:canaryOfTheDatabase@x/y}
sources:
  stripe: {provider: stripe, secrets: [{name: first, value: ` + secretCanary + `}]}
destinations:
  mail: {url: "https://mail.example", key: {value: canaryOfTheDestination}}
effects:
  receipt: {source: stripe, type: invoice, rule_version: 2, key: "receipt:{{ object.id }}",
    steps: [{name: send, to: mail, path: "/mail"}]}
`

// env is a console over a database, with the API of the same process.
type env struct {
	db      *testkit.DB
	pool    *pgxpool.Pool
	console *Console
	// api is the admin API over the same database.
	api http.Handler
	// url is the address of the console's server, without a slash at its end.
	url string
	// source is the number of the source stripe.
	source int32
}

// newEnv starts a console on loopback. Its database has the sources stripe and shop, and nothing
// else. Change the options to require tokens or to make it read-only.
func newEnv(t testing.TB, change ...func(*Options)) *env {
	t.Helper()
	e := &env{db: testkit.Database(t)}
	known, err := events.RegisterSources(t.Context(), e.db.Pool, map[string]string{"stripe": "stripe",
		"shop": "shopify"})
	testkit.Must(t, err)
	e.source = known.Number["stripe"]
	e.db.Exec(t, `UPDATE sources SET api_reads = '{events,objects,object}'`)
	cfg, err := config.Parse([]byte(envConfig), func(string) string { return "" })
	testkit.Must(t, err)
	e.pool = e.db.Role(t, "operator")
	o := Options{Pages: e.pool, Sessions: e.pool, Name: "test", Version: "v0", Logger: testkit.Logger(t),
		Tokens: tokens{e.pool}, Endpoints: cfg.Endpoints, Rules: cfg.Rules}
	for _, f := range change {
		f(&o)
	}
	e.api = admin.New(admin.Options{Pool: e.pool, Logger: testkit.Logger(t), RequireTokens: o.RequireTokens,
		SeparateApprovals: o.SeparateApprovals,
		Tokens:            o.Tokens, Endpoints: cfg.Endpoints,
		Reprocessor: &operations.Reprocessor{Pool: e.db.Role(t, "gateway"), Endpoints: cfg.Endpoints},
		Rules:       cfg.Rules, Destinations: cfg.ResolveDestinations})
	if o.API == nil {
		o.API = e.api
	}
	e.console, err = New(o)
	testkit.Must(t, err)
	e.url = serve(t, e.console)
	return e
}

// serve starts a server on loopback and returns its address.
func serve(t testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// tokens checks tokens without a cache, so that new ones are valid at once.
type tokens struct{ pool *pgxpool.Pool }

func (k tokens) Check(ctx context.Context, secret string) (string, adminauth.Role, error) {
	return (&adminauth.TokenCache{DB: k.pool}).Check(ctx, secret)
}

func requireTokens(o *Options) { o.RequireTokens = true }

func readOnly(o *Options) { o.ReadOnly = true }

// token creates a token and returns its secret.
func (e *env) token(t *testing.T, name string, role adminauth.Role) string {
	t.Helper()
	secret, _, err := adminauth.CreateToken(t.Context(), e.pool, name, role, "ada", time.Time{})
	testkit.Must(t, err)
	return secret
}

// advanceClock moves the database's clock, e.g. by "1 hour".
func (e *env) advanceClock(t *testing.T, by string) {
	t.Helper()
	e.db.ReplaceClock(t, "clock_timestamp() + interval '"+by+"'")
}

// thing is the texts of one event and of everything that belongs to it.
type thing struct {
	key, eventType, account, objectType, objectID string
	headers, body, state                          string
	// occurred is when the event occurred; zero: an hour ago.
	occurred time.Time
	// status and reason are those of the live outcome; without status there is none.
	status, reason string
}

// add stores an event of the source stripe with its object and outcome, and returns its id. An
// object without state is not stored.
func (e *env) add(t *testing.T, x thing) int64 {
	t.Helper()
	if x.occurred.IsZero() {
		x.occurred = time.Now().Add(-time.Hour)
	}
	if x.headers == "" {
		x.headers = `{"user-agent": "Stripe/1.0"}`
	}
	receipts, err := events.Append(t.Context(), e.db.Pool, []events.Delivery{{Source: e.source,
		ReceivedAt: time.Now(), Origin: events.OriginWebhook, Headers: []byte(x.headers),
		Verification: []byte(`{"scheme": "stripe", "secret": "first", "signed_at": "2026-11-01T10:00:00Z"}`),
		Body:         []byte(x.body), Events: []provider.Event{{Key: x.key, Type: x.eventType, Account: x.account,
			ObjectType: x.objectType, ObjectID: x.objectID, OccurredAt: x.occurred,
			APIVersion: "2026-06-30", Fingerprint: provider.BodyFingerprint([]byte(x.body))}}}})
	testkit.Must(t, err)
	id := receipts[0][0].ID
	stored := func(s string) string { return events.SanitizeText(s) }
	if x.state != "" {
		e.db.Exec(t, `INSERT INTO objects (source, account, object_type, object_id, version_final, version_at,
				version_seen, version_rank, tied_states, overflow, time_from, time_to, refetch_after, ambiguous,
				deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision, rule_version, created_at,
				updated_at)
			VALUES ($1, $2, $3, $4, false, 1790000000000000, 0, 1, '[{}]', false, 0, 0, 0, false, false,
				decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex'), $5, false, $6, 2, 1, now(), now())
			ON CONFLICT DO NOTHING`,
			e.source, stored(x.account), stored(x.objectType), stored(x.objectID), x.state, id)
	}
	if x.status != "" {
		k := versioning.Key{Source: e.source, Account: stored(x.account), Type: stored(x.objectType),
			ID: stored(x.objectID)}
		e.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status,
				reason, attempts, due, at, rule_version) VALUES ($1, 0, $2, $3, $4, $5, $6, $7, $8, 1,
				CASE WHEN $7 = 'failed' THEN now() END, now(), 1)`,
			id, k.Source, k.Hash(), k.Account, k.Type, k.ID, x.status, stored(x.reason))
	}
	return id
}

// fill adds events with each outcome, and at least one of each thing that pages show. The texts of
// the things contain mark.
func (e *env) fill(t *testing.T, mark string) {
	t.Helper()
	for i, status := range []string{"applied", "stale", "dead", "failed", "ambiguous", ""} {
		e.add(t, thing{key: fmt.Sprint("evt_", i, mark), eventType: "customer.updated" + mark, account: mark,
			objectType: "customer" + mark, objectID: fmt.Sprint("cus_", i%2, mark), body: jsonText(mark),
			state: jsonText(mark), status: status, reason: "because " + mark, headers: jsonText(mark)})
	}
	e.fillOthers(t, events.SanitizeText(mark))
}

// fillOthers adds the things that no event brings.
func (e *env) fillOthers(t *testing.T, mark string) {
	t.Helper()
	for _, statement := range fillStatements {
		e.db.Exec(t, "WITH given AS (SELECT $1::int, $2::text, $3::text) "+parameters.Replace(statement), e.source,
			mark, jsonText(mark))
	}
}

// parameters are the names of parameters in fillStatements.
var parameters = strings.NewReplacer("SOURCE", "$1::int", "TEXT", "$2::text", "JSON", "$3::text::jsonb", "BODY",
	"convert_to($3, 'UTF8')")

var fillStatements = []string{
	`INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers,
		verification, body)
	SELECT source, id, event_id, event_type, account, decode(md5(TEXT), 'hex'), now(), JSON, '{}', BODY FROM events
		LIMIT 1`,
	`INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
	VALUES (SOURCE, 'wrong_signature', TEXT, TEXT, now(), JSON, BODY, 1)`,
	`INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
	VALUES ('reconcile', JSON, TEXT, TEXT, 'failed', TEXT, '{"repaired": 1}', now(), now(), now()),
		('replay', '{}', TEXT, TEXT, 'paused', TEXT, '{}', now(), NULL, now()),
		('replay', '{"mode": "force"}', TEXT, TEXT, 'awaiting_approval', TEXT, '{}', now(), NULL, now())`,
	`INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at, versions_only,
		skipped_parts)
	VALUES (1, SOURCE, TEXT, TEXT, 'done', now(), now(), true,
		jsonb_build_array(jsonb_build_object('part', TEXT, 'reason', TEXT, 'truncated', true)))`,
	`INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason, event_id)
	VALUES (1, SOURCE, TEXT, TEXT, 'a' || TEXT, 'mirror_older',
			jsonb_build_array(jsonb_build_object('path', TEXT, 'before', null, 'after', TEXT)), TEXT, 1),
		(1, SOURCE, TEXT, TEXT, 'b' || TEXT, 'orphan', '[]', TEXT, NULL)`,
	`INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
	VALUES (SOURCE, '', 1, now(), now(), 0, '{}') ON CONFLICT DO NOTHING`,
	`INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_by, requested_at, due,
		start_after, attempts, error, lease_owner, lease_until)
	VALUES (SOURCE, TEXT, TEXT, TEXT, 'ambiguous', TEXT, now(), now(), 1790000000000001, 2, TEXT, '', '-infinity')`,
	`INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
	VALUES (SOURCE, TEXT, 'events', now(), now(), 1, now())`,
	`INSERT INTO schedules (name, job, cron, time_zone, overlap, missed, parameters, planned_at, skipped,
		skipped_reason, paused_by, configured_at)
	VALUES ('nightly' || TEXT, 'replay', '30 3 * * *', 'UTC', 'skip', 'run',
		jsonb_build_object('type', TEXT), now(), 1, TEXT, TEXT, now())`,
	`INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		template_data, state, reason, destination, planned_at, updated_at)
	SELECT n || TEXT, 1, 'mail' || TEXT, SOURCE, TEXT, TEXT, TEXT, (SELECT max(id) FROM events), 0, JSON, state, TEXT,
		TEXT, now(), now()
	FROM unnest('{awaiting_approval,needs_review,done}'::text[]) WITH ORDINALITY AS d(state, n)`,
	`INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts, reserved_at,
		ended_at, captured, resolved_by, undoable)
	SELECT effect, TEXT, 0, CASE state WHEN 'done' THEN 'done' ELSE 'unknown' END, TEXT, JSON, '\x01', 1, now(), now(),
		JSON, 'operator', false
	FROM effects WHERE state IN ('done', 'needs_review') AND rule = 'mail' || TEXT`,
	`INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, attempts, reserved_at, ended_at,
		reason)
	SELECT effect, 'extra' || TEXT, 1, 'skipped', TEXT, '', 0, now(), now(), 'its condition was false' || TEXT
	FROM effects WHERE state = 'done' AND rule = 'mail' || TEXT`,
	`INSERT INTO spools (spool, location, drained_at, reported_at, deliveries, bytes)
	VALUES ('gone' || TEXT, TEXT, '-infinity', now() - interval '1 h', 3, 100)`,
	`INSERT INTO activity_secrets SELECT SOURCE, name, floor(extract(epoch FROM now()) / 3600) - hours, 9,
		now() - hours * interval '1 h' FROM (VALUES ('first', 30), ('second' || TEXT, 0)) v (name, hours)
	ON CONFLICT DO NOTHING`,
	`INSERT INTO verify_reports (stored_by, report)
	VALUES (TEXT, jsonb_build_object('at', now(), 'checked', jsonb_build_object('keys', 6), 'notes',
		jsonb_build_array('a note about ' || TEXT), 'findings', jsonb_build_array(jsonb_build_object('kind', TEXT,
		'count', 2, 'means', TEXT, 'remedy', TEXT))))`,
	`INSERT INTO audit (actor, via, address, action, target, reason, run)
	VALUES (TEXT, 'command', TEXT, 'replay', TEXT, TEXT, 1)`,
	`INSERT INTO redactions (run, actor, reason, params, requested_by, events, objects, conflicts, rejections, began_at,
		updated_at, ended_at)
	SELECT 99 + count(*), TEXT, TEXT, '{}', 1, 0, 0, 0, 0, now(), now(), NULL FROM redactions`,
}

// jsonText is a document whose member and value are a text.
func jsonText(s string) string {
	text, err := json.Marshal(map[string]any{"m" + s: s, "list": []any{1, nil, s}})
	if err != nil {
		panic(err) // texts are always valid
	}
	return string(text)
}

// browser sends requests as a browser does. It keeps cookies, and does not follow redirects.
type browser struct {
	client *http.Client
	url    string
	// host is the Host header; "" for that of the address.
	host string
	// headers are sent with each request.
	headers http.Header
}

// cookies returns the cookies that the browser keeps.
func (b *browser) cookies(t *testing.T) []*http.Cookie {
	t.Helper()
	address, err := url.Parse(b.url)
	testkit.Must(t, err)
	return b.client.Jar.Cookies(address)
}

// browser returns a browser without cookies.
func (e *env) browser() *browser {
	jar, _ := cookiejar.New(nil) // never returns an error
	return &browser{url: e.url, headers: http.Header{}, client: &http.Client{Jar: jar, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// login returns a browser with a session of a new token.
func (e *env) login(t *testing.T, name string, role adminauth.Role) *browser {
	t.Helper()
	b := e.browser()
	p := b.post(t, "/console/login", url.Values{"token": {e.token(t, name, role)}})
	if p.status != http.StatusSeeOther {
		t.Fatalf("login: %d %s", p.status, p.text())
	}
	return b
}

// response is a page as a browser gets it.
type response struct {
	status int
	header http.Header
	body   string
	root   *html.Node
}

func (b *browser) get(t *testing.T, path string) *response { return b.do(t, http.MethodGet, path, nil) }

// post submits a form, as a page of the same origin.
func (b *browser) post(t *testing.T, path string, values url.Values) *response {
	return b.do(t, http.MethodPost, path, values)
}

func (b *browser) do(t *testing.T, method, path string, values url.Values) *response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, strings.NewReader(values.Encode()))
	testkit.Must(t, err)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", b.url)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	maps.Copy(req.Header, b.headers)
	req.Host = b.host
	res, err := b.client.Do(req)
	testkit.Must(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	testkit.Must(t, err)
	p := &response{status: res.StatusCode, header: res.Header, body: string(body)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
		p.root, err = html.Parse(bytes.NewReader(body))
		testkit.Must(t, err)
	}
	return p
}

// want fails the test unless a page has a status, and contains texts.
func (p *response) want(t *testing.T, what string, status int, texts ...string) {
	t.Helper()
	if p.status != status {
		t.Errorf("%s: %d to %s, want %d: %.3000s", what, p.status, p.header.Get("Location"), status, p.text())
		return
	}
	for _, text := range texts {
		if !strings.Contains(p.text(), text) {
			t.Errorf("%s: without %q: %.3000s", what, text, p.text())
		}
	}
}

// wantPages fails the test unless each page, by its path after the prefix, contains texts.
func (b *browser) wantPages(t *testing.T, pages map[string][]string) {
	t.Helper()
	for path, texts := range pages {
		b.get(t, Prefix+path).want(t, path, http.StatusOK, texts...)
	}
}

// all returns the elements of a page with a name.
func (p *response) all(name string) (found []*html.Node) {
	if p.root == nil {
		return nil
	}
	for n := range p.root.Descendants() {
		if n.Type == html.ElementNode && n.Data == name {
			found = append(found, n)
		}
	}
	return found
}

// text returns the text of a page without its markup, with single spaces.
func (p *response) text() string {
	if p.root == nil {
		return p.body
	}
	return textOf(p.root)
}

func textOf(n *html.Node) string {
	var parts []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			parts = append(parts, d.Data)
		}
	}
	return strings.Join(strings.Fields(strings.Join(parts, "")), " ")
}

func attribute(n *html.Node, name string) string {
	if i := slices.IndexFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name }); i >= 0 {
		return n.Attr[i].Val
	}
	return ""
}

// links returns the addresses of the links of a page that lead to pages of the console.
func (p *response) links() (all []string) {
	for _, a := range p.all("a") {
		if href := attribute(a, "href"); strings.HasPrefix(href, Prefix) && !slices.Contains(all, href) {
			all = append(all, href)
		}
	}
	return all
}

// form is a form of a page that makes a change.
type form struct {
	action string
	values url.Values
}

// forms returns the forms for changes by their labels.
func (p *response) forms() map[string]form {
	all := map[string]form{}
	for _, n := range p.all("form") {
		if !strings.EqualFold(attribute(n, "method"), "post") {
			continue
		}
		f, label := form{attribute(n, "action"), url.Values{}}, ""
		for d := range n.Descendants() {
			switch {
			case d.Data == "button":
				label = textOf(d)
			case d.Data == "input" && attribute(d, "type") != "checkbox":
				f.values.Add(attribute(d, "name"), attribute(d, "value"))
			case d.Data == "option" && attribute(d, "value") != "" && d.Parent.Data == "select" &&
				strings.HasPrefix(attribute(d.Parent, "name"), paramPrefix) &&
				!f.values.Has(attribute(d.Parent, "name")):
				f.values.Set(attribute(d.Parent, "name"), attribute(d, "value"))
			}
		}
		all[label] = f
	}
	return all
}

// submit submits the form of a page with a label. The values are name and value in turn.
func (b *browser) submit(t *testing.T, p *response, label string, namesAndValues ...string) *response {
	t.Helper()
	f, ok := p.forms()[label]
	if !ok {
		t.Fatalf("the page has no form %q: %d %.2000s", label, p.status, p.text())
	}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		f.values.Set(namesAndValues[i], namesAndValues[i+1])
	}
	return b.post(t, f.action, f.values)
}

// maxWalked is the number of pages of each kind that a walk visits.
const maxWalked = 3

// walk visits the pages to which the links of pages lead, from the first one and the search on. It
// visits some pages of each kind, and returns how many by the pattern of their paths.
func (e *env) walk(t *testing.T, b *browser, visit func(path string, p *response)) map[string]int {
	t.Helper()
	return e.walkMany(t, b, maxWalked, visit)
}

// walkMany visits at most the given number of pages of each kind.
func (e *env) walkMany(t *testing.T, b *browser, most int, visit func(path string, p *response)) map[string]int {
	t.Helper()
	kinds, visited := http.NewServeMux(), map[string]int{}
	for path := range e.console.pages() {
		kinds.Handle("GET "+Prefix+path, http.NotFoundHandler())
	}
	seen, next := map[string]bool{Prefix: true}, []string{Prefix, Prefix + "find?q=cus_0x"}
	for len(next) > 0 {
		path := next[0]
		next = next[1:]
		_, kind := kinds.Handler(httptest.NewRequest(http.MethodGet, path, nil))
		if visited[kind]++; visited[kind] > most {
			continue
		}
		p := b.get(t, path)
		visit(path, p)
		found := p.links()
		if to := p.header.Get("Location"); to != "" {
			found = append(found, to)
		}
		for _, to := range found {
			if to, _, _ = strings.Cut(to, "#"); strings.HasPrefix(to, Prefix) && !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	return visited
}
