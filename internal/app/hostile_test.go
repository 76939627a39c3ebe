package app_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
)

// configured is setup with another configuration; nothing is started yet.
func configured(t *testing.T, edit func(*config.Config)) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t)}
	b.cfg = config.Default()
	b.cfg.Sources = config.DemoSources()
	b.cfg.Database.URL, b.cfg.NATS.URL = config.URL(b.db.URL), config.URL(b.nats.URL)
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	if edit != nil {
		edit(b.cfg)
	}
	return b
}

// signBody makes a delivery of any body; eventType is the topic where it travels beside the body.
func (b *testBundle) signBody(t *testing.T, source, eventType, body string) *provider.Delivery {
	t.Helper()
	p, _ := all.Named(b.cfg.Sources[source].Provider)
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == source {
			d, err := p.Sign(e.Source, provider.Sample{Type: eventType, Body: []byte(body)}, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatalf("no source %s", source)
	return nil
}

// hostile is a signed body that a sender should not send, and what must become of it.
type hostile struct {
	name, source, body string
	status             string
	// reason is a part of the outcome's reason.
	reason string
	// path and want are a look at the state, "" for none; an array path like {name}.
	path, want string
	repaired   bool
}

// customer is a Stripe event about a customer with more members.
func customer(event, id, members string) string {
	return fmt.Sprintf(`{"id": %q, "object": "event", "type": "customer.updated", "created": %d, "data": {"object": {"object": "customer", "id": %s%s}}}`,
		event, time.Now().Unix(), id, members)
}

// order is a whole Shopify order with an id as it is written and more members; of members that are there twice the last counts.
func order(id, members string) string {
	for _, s := range (shopify.Shopify{}).Samples() {
		if s.Type == "orders/updated" {
			return fmt.Sprintf(`%s, "id": %s, "updated_at": %q%s}`, strings.TrimSuffix(string(s.Body), "}"), id, time.Now().UTC().Format(time.RFC3339), members)
		}
	}
	panic("no sample of an order")
}

func hostileBodies() []hostile {
	long := strings.Repeat("x", 5_000_000)
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	return []hostile{
		{name: "duplicate keys", source: "stripe", body: customer("evt_dup", `"cus_other", "id": "cus_dup"`, `, "name": "first", "name": "last"`), status: "applied", path: "{name}", want: "last"},
		{name: "NUL", source: "stripe", body: customer("evt_nul", `"cus_nul"`, `, "name": "a\u0000b", "k\u0000": 1`), status: "applied", path: "{name}", want: "a\ufffdb", repaired: true},
		{name: "lone surrogate", source: "stripe", body: customer("evt_sur", `"cus_sur"`, `, "name": "a\ud800b\udc00"`), status: "applied", path: "{name}", want: "a\ufffdb\ufffd", repaired: true},
		{name: "huge exponent", source: "stripe", body: customer("evt_exp", `"cus_exp"`, `, "balance": 1e400000`), status: "applied", path: "{balance}", want: "1e400000", repaired: true},
		{name: "tiny exponent", source: "stripe", body: customer("evt_tiny", `"cus_tiny"`, `, "balance": -1e-99999999999999999999`), status: "applied", path: "{balance}", want: "-1e-99999999999999999999", repaired: true},
		{name: "above 2^53", source: "stripe", body: customer("evt_big", `"cus_big"`, `, "balance": 9007199254740993`), status: "applied", path: "{balance}", want: "9007199254740993"},
		{name: "many digits", source: "stripe", body: customer("evt_dig", `"cus_dig"`, `, "balance": 0.`+strings.Repeat("7", 900)), status: "applied", path: "{balance}", want: "0." + strings.Repeat("7", 900)},
		{name: "deep", source: "stripe", body: customer("evt_deep", `"cus_deep"`, `, "deep": `+nested(990)), status: "applied"},
		{name: "too deep", source: "stripe", body: customer("evt_deeper", `"cus_deeper"`, `, "deep": `+nested(1001)), status: "dead", reason: "nested deeper than 1000"},
		{name: "much too deep", source: "stripe", body: nested(500_000), status: "dead", reason: "nested deeper than 1000"},
		{name: "5 MB of text", source: "stripe", body: customer("evt_long", `"cus_long"`, `, "name": "`+long+`"`), status: "applied", path: "{name}", want: long},
		{name: "empty", source: "stripe", body: "", status: "dead", reason: "not JSON"},
		{name: "null", source: "stripe", body: "null", status: "dead", reason: "not an object"},
		{name: "array", source: "stripe", body: "[]", status: "dead", reason: "not an object"},
		{name: "empty object", source: "stripe", body: "{}", status: "ignored", reason: "no object"},
		{name: "broken", source: "stripe", body: `{"id": "evt_broken", `, status: "dead", reason: "at byte"},
		{name: "invalid UTF-8", source: "stripe", body: "{\"id\": \"evt_\xff\"}", status: "dead", reason: "UTF-8"},
		{name: "byte order mark", source: "stripe", body: "\ufeff{}", status: "dead", reason: "not JSON"},
		{name: "number as id", source: "stripe", body: customer("evt_num", `12345`, ""), status: "ignored", reason: "no id"},
		{name: "NUL in id", source: "stripe", body: customer("evt_idnul", `"cus\u0000"`, ""), status: "dead", reason: "control"},
		{name: "long id", source: "stripe", body: customer("evt_idlong", `"`+strings.Repeat("i", 10_000)+`"`, ""), status: "dead", reason: "too long"},
		{name: "odd type", source: "stripe", body: strings.Replace(customer("evt_odd", `"cus_odd"`, ""), "customer.updated", `..* >\u00e4.`, 1), status: "applied"},
		{name: "far future", source: "stripe", body: strings.Replace(customer("evt_far", `"cus_far"`, ""), `"created": `, `"created": 9`, 1), status: "dead", reason: "freeze"},
		{name: "no time", source: "stripe", body: strings.Replace(customer("evt_when", `"cus_when"`, ""), `"created"`, `"made"`, 1), status: "dead", reason: "created"},
		{name: "shop: null", source: "shopify", body: "null", status: "dead", reason: "not an object"},
		{name: "shop: id above 2^53", source: "shopify", body: order("9007199254740993", `, "note": "exact"`), status: "applied", path: "{id}", want: "9007199254740993"},
		{name: "shop: fraction as id", source: "shopify", body: `{"id": 1.5, "updated_at": "2026-01-01T00:00:00Z"}`, status: "dead", reason: "name its order"},
		{name: "shop: text as id", source: "shopify", body: `{"id": "gid", "updated_at": "2026-01-01T00:00:00Z"}`, status: "dead", reason: "name its order"},
		{name: "shop: no id", source: "shopify", body: `{"updated_at": "2026-01-01T00:00:00Z"}`, status: "dead", reason: "name its order"},
		{name: "shop: no time", source: "shopify", body: `{"id": 77}`, status: "ambiguous", reason: "the body has no"},
		{name: "shop: NUL", source: "shopify", body: order("78", `, "note": "a\u0000b"`), status: "applied", path: "{note}", want: "a\ufffdb", repaired: true},
	}
}

// Whatever a sender signs is stored byte for byte and ends in an outcome that says why; the mirror stays readable.
func TestHostileBodiesEndInAnOutcome(t *testing.T) {
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
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM mirror.objects), (SELECT count(length(state::text)) FROM mirror.objects WHERE version IS NOT NULL),
		(SELECT count(*) FROM mirror.events WHERE length(body_json::text) > 0 AND NOT body_json_omitted OR body_json IS NULL AND body_json_omitted)`).Scan(&objects, &texts, &bodies); err != nil {
		t.Fatalf("read the mirror: %v", err)
	}
	if texts == 0 || texts > objects || bodies != len(hostileBodies()) {
		t.Errorf("%d objects, %d states, %d bodies can be read", objects, texts, bodies)
	}
}

func (b *testBundle) checkHostile(t *testing.T, h hostile, id string) {
	t.Helper()
	var body []byte
	var reason, account, objectType, objectID string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT e.body, o.reason, o.account, o.object_type, o.object_id FROM events e JOIN outcomes o ON o.event_id = e.id WHERE e.id = $1::bigint`, id).
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
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT coalesce(state #>> $1::text[], ''), repaired FROM mirror.objects WHERE account = $2 AND object_type = $3 AND object_id = $4`,
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

// A body over the limit is the sender's to make smaller: it is refused and nothing of it is kept.
func TestBodyLimitIsTheSources(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) { c.Sources["stripe"].MaxBodyBytes = 2048 })
	b.app = b.start(t, app.Options{Gateway: true})
	for size, want := range map[int]int{2048: 200, 2049: 413} {
		d := b.signBody(t, "stripe", "", "{"+strings.Repeat(" ", size-2)+"}")
		if status, body := b.post(t, "stripe", d); status != want {
			t.Errorf("%d bytes: status %d, want %d: %s", size, status, want, body)
		}
	}
	if status, body := b.post(t, "shopify", b.signBody(t, "shopify", "orders/create", order(strconv.Itoa(1), strings.Repeat(" ", 4000)))); status != 200 {
		t.Errorf("another source's limit: status %d, %s", status, body)
	}
}
