package app_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

// signBody signs a delivery with any body; eventType is its topic, where that is outside of the
// body.
func (b *testBundle) signBody(t *testing.T, source, eventType, body string) *provider.Delivery {
	t.Helper()
	p, _ := all.Named(b.cfg.Sources[source].Provider)
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == source {
			d, err := p.Sign(e.Source, provider.Sample{Type: eventType, Body: []byte(body)}, time.Now())
			testkit.Must(t, err)
			return d
		}
	}
	t.Fatalf("no source %s", source)
	return nil
}

// hostileBody is a signed but unusual body and its expected result.
type hostileBody struct {
	name, source, body string
	status             string
	// reason is a part of the outcome's reason.
	reason string
	// path selects a part of the state ("" for none), as an array path like {name}, and want is its
	// value.
	path, want string
	repaired   bool
}

// customer is a Stripe event about a customer with additional members.
func customer(event, id, members string) string {
	return fmt.Sprintf(`{"id": %q, "object": "event", "type": "customer.updated", "created": %d, `+
		`"data": {"object": {"object": "customer", "id": %s%s}}}`, event, time.Now().Unix(), id, members)
}

// order is a complete Shopify order with an id in the given notation and additional members. Of
// duplicate members the last one counts.
func order(id, members string) string {
	for _, s := range (shopify.Shopify{}).Samples() {
		if s.Type == "orders/updated" {
			return fmt.Sprintf(`%s, "id": %s, "updated_at": %q%s}`, strings.TrimSuffix(string(s.Body), "}"), id,
				time.Now().UTC().Format(time.RFC3339), members)
		}
	}
	panic("no sample of an order")
}

func hostileBodies() []hostileBody {
	long := strings.Repeat("x", 5_000_000)
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	return []hostileBody{
		{name: "duplicate keys", source: "stripe", body: customer("evt_dup", `"cus_other", "id": "cus_dup"`,
			`, "name": "first", "name": "last"`), status: "applied", path: "{name}", want: "last"},
		{name: "NUL", source: "stripe", body: customer("evt_nul", `"cus_nul"`, `, "name": "a\u0000b", "k\u0000": 1`),
			status: "applied", path: "{name}", want: "a\ufffdb", repaired: true},
		{name: "lone surrogate", source: "stripe", body: customer("evt_sur", `"cus_sur"`, `, "name": "a\ud800b\udc00"`),
			status: "applied", path: "{name}", want: "a\ufffdb\ufffd", repaired: true},
		{name: "huge exponent", source: "stripe", body: customer("evt_exp", `"cus_exp"`, `, "balance": 1e400000`),
			status: "applied", path: "{balance}", want: "1e400000", repaired: true},
		{name: "tiny exponent", source: "stripe", body: customer("evt_tiny", `"cus_tiny"`,
			`, "balance": -1e-99999999999999999999`), status: "applied", path: "{balance}",
			want: "-1e-99999999999999999999", repaired: true},
		{name: "above 2^53", source: "stripe", body: customer("evt_big", `"cus_big"`, `, "balance": 9007199254740993`),
			status: "applied", path: "{balance}", want: "9007199254740993"},
		{name: "many digits", source: "stripe", body: customer("evt_dig", `"cus_dig"`, `, "balance": 0.`+
			strings.Repeat("7", 900)), status: "applied", path: "{balance}", want: "0." + strings.Repeat("7", 900)},
		{name: "deep", source: "stripe", body: customer("evt_deep", `"cus_deep"`, `, "deep": `+nested(990)),
			status: "applied"},
		{name: "too deep", source: "stripe", body: customer("evt_deeper", `"cus_deeper"`, `, "deep": `+nested(1001)),
			status: "dead", reason: "nested deeper than 1000"},
		{name: "much too deep", source: "stripe", body: nested(500_000), status: "dead",
			reason: "nested deeper than 1000"},
		{name: "5 MB of text", source: "stripe", body: customer("evt_long", `"cus_long"`, `, "name": "`+long+`"`),
			status: "applied", path: "{name}", want: long},
		{name: "empty", source: "stripe", body: "", status: "dead", reason: "not JSON"},
		{name: "null", source: "stripe", body: "null", status: "dead", reason: "not an object"},
		{name: "array", source: "stripe", body: "[]", status: "dead", reason: "not an object"},
		{name: "empty object", source: "stripe", body: "{}", status: "ignored", reason: "no object"},
		{name: "broken", source: "stripe", body: `{"id": "evt_broken", `, status: "dead", reason: "at byte"},
		{name: "invalid UTF-8", source: "stripe", body: "{\"id\": \"evt_\xff\"}", status: "dead", reason: "UTF-8"},
		{name: "byte order mark", source: "stripe", body: "\ufeff{}", status: "dead", reason: "not JSON"},
		{name: "number as id", source: "stripe", body: customer("evt_num", `12345`, ""), status: "ignored",
			reason: "no id"},
		{name: "NUL in id", source: "stripe", body: customer("evt_idnul", `"cus\u0000"`, ""), status: "dead",
			reason: "control"},
		{name: "long id", source: "stripe", body: customer("evt_idlong", `"`+strings.Repeat("i", 10_000)+`"`, ""),
			status: "dead", reason: "too long"},
		{name: "odd type", source: "stripe", body: strings.Replace(customer("evt_odd", `"cus_odd"`, ""),
			"customer.updated", `..* >\u00e4.`, 1), status: "applied"},
		{name: "far future", source: "stripe", body: strings.Replace(customer("evt_far", `"cus_far"`, ""),
			`"created": `, `"created": 9`, 1), status: "dead", reason: "would block later changes"},
		{name: "no time", source: "stripe", body: strings.Replace(customer("evt_when", `"cus_when"`, ""), `"created"`,
			`"made"`, 1), status: "dead", reason: "created"},
		{name: "shop: null", source: "shopify", body: "null", status: "dead", reason: "not an object"},
		{name: "shop: id above 2^53", source: "shopify", body: order("9007199254740993", `, "note": "exact"`),
			status: "applied", path: "{id}", want: "9007199254740993"},
		{name: "shop: fraction as id", source: "shopify", body: `{"id": 1.5, "updated_at": "2026-01-01T00:00:00Z"}`,
			status: "dead", reason: "contain the id of its order"},
		{name: "shop: text as id", source: "shopify", body: `{"id": "gid", "updated_at": "2026-01-01T00:00:00Z"}`,
			status: "dead", reason: "contain the id of its order"},
		{name: "shop: no id", source: "shopify", body: `{"updated_at": "2026-01-01T00:00:00Z"}`, status: "dead",
			reason: "contain the id of its order"},
		{name: "shop: no time", source: "shopify", body: `{"id": 77}`, status: "ambiguous", reason: "the body has no"},
		{name: "shop: NUL", source: "shopify", body: order("78", `, "note": "a\u0000b"`), status: "applied",
			path: "{note}", want: "a\ufffdb", repaired: true},
	}
}

// Every signed body is stored byte for byte and gets an outcome with a reason. The mirror stays
// readable.
func TestApp_hostileBodies_getOutcomes(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) {
		for _, src := range c.Sources {
			src.MaxBodyBytes = 8 << 20
		}
	})
	b.app = b.start(t, app.Options{Gateway: true, Processor: true})
	for _, h := range hostileBodies() {
		d := b.signBody(t, h.source, "orders/updated", h.body)
		r := b.mustPost(t, h.source, d)
		if status := b.outcome(t, r.ID); status != h.status {
			t.Errorf("%s: outcome %s, want %s", h.name, status, h.status)
		}
		b.checkHostile(t, h, r.ID)
	}
	var objects, texts, bodies int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM mirror.objects),
		(SELECT count(length(state::text)) FROM mirror.objects WHERE version IS NOT NULL),
		(SELECT count(*) FROM mirror.events WHERE length(body_json::text) > 0 AND NOT body_json_omitted
			OR body_json IS NULL AND body_json_omitted)`).Scan(&objects, &texts, &bodies); err != nil {
		t.Fatalf("read the mirror: %v", err)
	}
	if texts == 0 || texts > objects || bodies != len(hostileBodies()) {
		t.Errorf("%d objects, %d states, %d bodies can be read", objects, texts, bodies)
	}
}

func (b *testBundle) checkHostile(t *testing.T, h hostileBody, id string) {
	t.Helper()
	var body []byte
	var reason, account, objectType, objectID string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT e.body, o.reason, o.account, o.object_type, o.object_id
		FROM events e JOIN outcomes o ON o.event_id = e.id WHERE e.id = $1::bigint`, id).
		Scan(&body, &reason, &account, &objectType, &objectID); err != nil {
		t.Errorf("%s: %v", h.name, err)
		return
	}
	if !bytes.Equal(body, []byte(h.body)) {
		t.Errorf("%s: stored %.100q of %d bytes", h.name, body, len(body))
	}
	if reason == "" || !strings.Contains(reason, h.reason) {
		t.Errorf("%s: reason %.200q, want %q in it", h.name, reason, h.reason)
	}
	if h.status != "applied" {
		return
	}
	var state string
	var repaired bool
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT coalesce(state #>> $1::text[], ''), sanitized FROM mirror.objects
		WHERE account = $2 AND object_type = $3 AND object_id = $4`,
		h.path, account, objectType, objectID).Scan(&state, &repaired); err != nil {
		if h.path == "" {
			return
		}
		t.Errorf("%s: object %s %s: %v", h.name, objectType, objectID, err)
	}
	if h.path != "" && (state != h.want || repaired != h.repaired) {
		t.Errorf("%s: state %.100q repaired %t, want %.100q %t", h.name, state, repaired, h.want, h.repaired)
	}
}

// canary is a credential that must not be in the database or the log.
const canary = "c4n4ry-0f-4-s3cr3t"

// credentialHeaders may contain credentials of proxies, browsers and APIs.
var credentialHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "Api-Key",
	"X-Auth-Token", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token", "X-Gitlab-Token",
	"X-Goog-Channel-Token", "X-Vault-Token", "X-Webhook-Secret", "X-Hub-Secret", "X-Session-Id",
	"X-Forwarded-Client-Cert"}

// addCredentials returns a delivery with the canary in every header that may contain a credential
// and that the sender does not use.
func addCredentials(d *provider.Delivery) *provider.Delivery {
	for _, name := range credentialHeaders {
		if len(d.Header.Values(name)) == 0 {
			d.Header.Set(name, "Bearer "+canary)
		}
	}
	return d
}

// No credential in a delivery of any provider, accepted or rejected, is in the database or the log.
// The same is true for Postern's own secrets, even if the sender sends them.
func TestApp_credentialsInDeliveries_areNotStored(t *testing.T) {
	t.Parallel()
	b, log := configured(t, nil), &lockedLog{}
	b.app = b.launch(t, app.Options{Gateway: true,
		Logger: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	ended := sync.OnceFunc(func() { stop(t, b.app) })
	t.Cleanup(ended)
	refused := 0
	for name, source := range b.cfg.Sources {
		p, _ := all.Named(source.Provider)
		sample := p.Samples()[0].Type
		if status, body := b.post(t, name, addCredentials(b.sign(t, name, sample, 1, time.Now()))); status/100 != 2 {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if status, _ := b.post(t, name, forge(p, b.sign(t, name, sample, 2, time.Now()))); status/100 == 4 {
			refused++
		}
	}
	b.waitRows(t, refused, `rejections`)
	ended()
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--data-only", "--inserts", "--dbname", b.db.URL).Output()
	testkit.Must(t, err)
	for where, text := range map[string]string{"database": string(dump), "log": log.String()} {
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("the %s contains a credential: %s", where, text[max(0, at-200):min(len(text), at+100)])
		}
		for name, source := range b.cfg.Sources {
			for _, secret := range source.Secrets {
				if value := string(secret.Value); strings.Contains(text, value) {
					t.Errorf("the %s contains the secret of %s", where, name)
				}
			}
		}
	}
	if !strings.Contains(string(dump), "evt_") || refused < len(b.cfg.Sources)/2 {
		t.Errorf("%d rejected deliveries, and a dump of %d bytes: too few for this test", refused, len(dump))
	}
}

// forge invalidates a delivery. It replaces all header values except those that the provider keeps.
func forge(p provider.Provider, d *provider.Delivery) *provider.Delivery {
	for name := range addCredentials(d).Header {
		switch {
		case name == "Content-Type":
		case slices.Contains(p.Headers(), name):
			d.Header[name] = []string{"forged"}
		default:
			d.Header[name] = []string{canary}
		}
	}
	return d
}

// Events of your own services are applied, verified, replayed and redacted like those of a
// provider, in each mode of delivery. A key outlives the event that was stored with it.
func TestApp_directSource_appliedVerifiedReplayedRedacted(t *testing.T) {
	t.Parallel()
	b := setup(t, func(tuning *app.Tuning) {
		tuning.Runs.PollInterval = 100 * time.Millisecond
		tuning.Processor.RepublishInterval, tuning.Processor.RepublishMinAge = 50*time.Millisecond, 10*time.Millisecond
	})
	const email = "ada.lovelace@example.org"
	push := func(body string, headers ...string) *provider.Delivery {
		d := &provider.Delivery{Header: http.Header{"Authorization": {"Bearer " +
			string(b.cfg.Sources["api"].Secrets[0].Value)}}, Body: []byte(body)}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			d.Header.Set(name, value)
		}
		return d
	}
	data := func(version int) string { return fmt.Sprintf(`{"version":%d,"email":%q}`, version, email) }
	structured := func(id string, version int) *provider.Delivery {
		return push(`{"specversion":"1.0","id":"`+id+
			`","source":"/s","type":"com.example.order.updated","subject":"o1","data":`+data(version)+`}`,
			"Content-Type: application/cloudevents+json")
	}
	binary := push(data(2), "Content-Type: application/json", "ce-specversion: 1.0", "ce-id: 2", "ce-source: /s",
		"ce-type: com.example.order.updated", "ce-subject: o1")
	var ids []int64
	for _, d := range []*provider.Delivery{binary, structured("1", 1), structured("3", 3)} {
		r := b.mustPost(t, "api", d)
		id, err := strconv.ParseInt(r.ID, 10, 64)
		testkit.Must(t, err)
		ids = append(ids, id)
		if status, want := b.outcome(t, r.ID),
			map[bool]string{true: "stale", false: "applied"}[len(ids) == 2]; status != want {
			t.Errorf("event %d is %s, want %s", len(ids), status, want)
		}
	}
	object := func() string {
		return strings.Join(b.db.QueryStrings(t, `SELECT object_type || ' ' || object_id || ' ' || deleted || ' ' ||
			coalesce(state::text, 'null') FROM objects`), "; ")
	}
	want := `order o1 false {"email": "` + email + `", "version": 3}`
	if got := object(); got != want {
		t.Errorf("object %s, want %s", got, want)
	}
	b.checkIntegrity(t)
	known := b.registeredSources(t)

	run := b.runToEnd(t, runs.Request{Job: replay.Job,
		Params: replay.Params{Filter: events.Filter{Source: known.Number["api"]}}})
	if diff := cmp.Diff([]string{"stale", "stale", "unchanged"}, b.db.QueryStrings(t, `SELECT status FROM outcomes
		WHERE run = $1 ORDER BY status`, run)); diff != "" || object() != want {
		t.Errorf("replayed to %s, outcomes (-want +got):\n%s", object(), diff)
	}

	b.runToEnd(t, runs.Request{Job: redaction.Job, Params: redaction.Params{Events: ids}, Actor: "me",
		Reason: "she asked for it"})
	if n := b.db.QueryStrings(t, `SELECT count(*)::text FROM events WHERE body IS NOT NULL OR headers <> '{}'`); n[0] !=
		"0" {
		t.Errorf("%s events have their content", n[0])
	}
	if got := object(); strings.Contains(got, email) {
		t.Errorf("object %s", got)
	}
	b.checkIntegrity(t)
	if r := b.mustPost(t, "api", binary); !r.Duplicate || r.ID != strconv.FormatInt(ids[0], 10) {
		t.Errorf("sent again after its redaction: %+v", r)
	}
	if status, body := b.post(t, "api", structured("1", 9)); status != http.StatusUnprocessableEntity {
		t.Errorf("other content after the redaction: %d %s", status, body)
	}
	for table, column := range map[string]string{"events": "body", "event_conflicts": "body", "rejections": "body"} {
		if n := b.db.QueryStrings(t, `SELECT count(*)::text FROM `+table+` WHERE `+column+` IS NOT NULL`); n[0] != "0" {
			t.Errorf("%s rows of %s contain redacted data", n[0], table)
		}
	}
}

func (b *testBundle) registeredSources(t *testing.T) events.Sources {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"api": "api"})
	testkit.Must(t, err)
	return known
}

// checkIntegrity fails the test unless all stored data of the source api is valid.
func (b *testBundle) checkIntegrity(t *testing.T) {
	t.Helper()
	known := b.registeredSources(t)
	sources := map[string]apply.Source{}
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == "api" {
			sources["api"] = apply.Source{Number: known.Number["api"], Config: e.Source, Provider: e.Provider}
		}
	}
	report, err := verify.Verify(t.Context(), verify.Options{Pool: b.db.Role(t, "operator"), Known: known,
		Sources: sources, MaxItems: verify.DefaultMaxItems})
	if err != nil || len(report.Findings) > 0 {
		t.Fatalf("verified: %+v, %v", report, err)
	}
}

// runToEnd creates a run and waits for its end.
func (b *testBundle) runToEnd(t *testing.T, o runs.Request) int64 {
	t.Helper()
	run, err := runs.Create(t.Context(), b.db.Role(t, "operator"), o)
	testkit.Must(t, err)
	b.waitTrue(t, `SELECT status = 'done' FROM runs WHERE run = $1::bigint`, strconv.FormatInt(run, 10))
	return run
}
