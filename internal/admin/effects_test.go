package admin_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The API returns the same effects as the command, with the allowed actions.
func TestEffects_filters_selectEffects(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for path, want := range map[string]string{
		"/api/v1/effects": "effect 5 4 3 2 1",
		"/api/v1/effects?state=needs_review&limit=1":           "effect 4",
		"/api/v1/effects?rule=mail&source=stripe&type=order":   "effect 5 4 3 2 1",
		"/api/v1/effects?object_type=order&object_id=2":        "effect 2",
		"/api/v1/effects?event=7":                              "effect 5 4 3 2 1",
		"/api/v1/effects?key=mail:3&account=":                  "effect 3",
		"/api/v1/effects?since=2026-01-03":                     "effect ",
		"/api/v1/effects?until=2026-01-03&state=done":          "effect 5",
		"/api/v1/effects?source=stripe&type=invoice&rule=mail": "effect ",
	} {
		member, items, _ := strings.Cut(want, " ")
		if status, body := b.get(t, path); status != 200 || ids(body, member) != items {
			t.Errorf("%s: %d %v", path, status, body)
		}
	}
	status, body := b.get(t, "/api/v1/effects/3")
	if status != 200 || body["event_key"] != "k" || len(body["payload_sha256"].(string)) != 64 ||
		!strings.Contains(body["next"].(string), "postern effects resolve 3 --step mail --done, or --not-done") {
		t.Errorf("%d %v", status, body)
	}
	if step := body["steps"].([]any)[0].(map[string]any); step["state"] != "unknown" ||
		step["captured"].(map[string]any)["id"] != "m_1" || step["request"] != "POST /mail" ||
		step["fingerprint"] != "01" {
		t.Errorf("%v", step)
	}
	if status, body := b.get(t, "/api/v1/effects/3/data"); status != 200 || body["effect"] != 3.0 ||
		body["template_data"].(map[string]any)["event"].(map[string]any)["key"] != "k" {
		t.Errorf("%d %v", status, body)
	}
	b.wantResponses(t, [][2]string{{"GET /effects/99", "404"}, {"GET /effects/99/data", "404"},
		{"GET /effects?state=lost", "400 awaiting_approval, planned"}})
}

// A change needs a reason and an effect in a suitable state. It returns the changed effect, and is
// made once per idempotency key.
func TestChangeEffects_actions_updateLedger(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.wantResponses(t, [][2]string{
		{`POST /effects/1/approve {}`, "400 give a reason"},
		{`POST /effects/1/approve {"reason": "why", "step": "mail"}`, "400 does not exist"},
		{`POST /effects/99/approve {"reason": "why"}`, "404 effect 99"},
		{`POST /effects/5/approve {"reason": "why"}`, "400 effect 5: it is done"},
		{`POST /effects/3/resolve {"reason": "why", "step": "mail"}`, "400 done: true or false"},
		{`POST /effects/3/resolve {"reason": "why", "step": "mail", "done": true, "captured": ["a"]}`, "400 captured"},
		{`POST /effects/3/resolve {"reason": {"a": 1}, "step": "mail", "done": true}`, "400 reason"},
		{`POST /effects/3/retry {"reason": "why"}`, "400 resolve 3 --step mail"},
		{`POST /effects/5/compensate {"reason": "why"}`, "400 no compensate for mail"},
	})
	b.db.WantRows(t, 0, "audit")
	for range 2 {
		if got := postAs(b.handler, "/api/v1/effects/1/approve", `{"reason": "why"}`, "key-1", ""); got.Code != 200 ||
			!strings.Contains(got.Body.String(), `"state":"planned"`) {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	}
	b.db.WantRows(t, 1, "audit")
}

// invoices stores events about the given number of Stripe invoices and applies them.
func (b *testBundle) invoices(t *testing.T, first, count int) {
	t.Helper()
	var all []events.Delivery
	for n := first; n < first+count; n++ {
		at := time.Now().Add(-time.Hour)
		body := fmt.Appendf(nil, `{"id":"evt_%d","object":"event","type":"invoice.updated","created":%d,`+
			`"data":{"object":{"id":"in_%d","object":"invoice","status":"paid"}}}`, n, at.Unix(), n)
		all = append(all, events.Delivery{Source: b.known.Number["stripe"], ReceivedAt: at,
			Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
			Events: []provider.Event{{Key: fmt.Sprint("evt_", n), Type: "invoice.updated", ObjectType: "invoice",
				ObjectID: fmt.Sprint("in_", n), OccurredAt: at, Fingerprint: provider.BodyFingerprint(body)}}})
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, all)
	must(t, err)
	ids := make([]int64, len(receipts))
	for i, r := range receipts {
		ids[i] = r[0].ID
	}
	p, err := apply.New(apply.Options{Pool: b.role(t, "processor"), Settings: apply.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]apply.Source{"stripe": {Number: b.known.Number["stripe"],
			Config: &provider.Source{Name: "stripe"}, Provider: stripe.Stripe{}}}})
	must(t, err)
	if _, err := p.ApplyStored(t.Context(), apply.Target{}, ids, false); err != nil {
		t.Fatal(err)
	}
}

// Before an approval, an operator reads what is sent, without secrets.
func TestEffectRequests_states_showWhatIsSentNext(t *testing.T) {
	t.Parallel()
	b := changing(t)
	_, unknowing := b.get(t, "/api/v1/effects/1/requests")
	if !strings.Contains(fmt.Sprint(unknowing["omitted"]), "the rule mail") {
		t.Errorf("without the rule: %v", unknowing)
	}
	cfg, err := config.Parse([]byte(mailConfig), func(string) string { return "" })
	must(t, err)
	b.handler = admin.New(admin.Options{Pool: b.db.Role(t, "operator"), Logger: testkit.Logger(t), Rules: cfg.Rules,
		Ready: func(context.Context) error { return nil }, Destinations: cfg.ResolveDestinations})
	_, body := b.get(t, "/api/v1/effects/1/requests")
	var got []string
	for _, one := range body["requests"].([]any) {
		x := one.(map[string]any)
		headers := x["headers"].(map[string]any)
		got = append(got, fmt.Sprint(x["step"], " ", x["method"], " ", x["address"], " ", headers["X-Team"], " ",
			headers["Authorization"], " ", headers["X-Key"], " ",
			headers["Idempotency-Key"] != nil, " ", x["body"], " ", x["omitted"]))
	}
	if want := `mail POST https://mail.example/v1/mail billing *** *** true {"to":"k"} ` +
		`|book   <nil> <nil> <nil> false  it may depend on the response to the step mail`; strings.Join(got,
		"|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
	for path, want := range map[string]string{"3": "it was attempted before", "5": "requests:[]", "99": "effect 99"} {
		if _, body := b.get(t, "/api/v1/effects/"+path+"/requests"); !strings.Contains(fmt.Sprint(body), want) {
			t.Errorf("%s: %v", path, body)
		}
	}
}

// mailConfig has the rule of the effects of changing.
const mailConfig = `
database: {url: postgres://x/y}
sources:
  stripe: {provider: stripe, secrets: [{name: a, value: ` + testSecret + `}]}
destinations:
  mail: {url: "https://mail.example"}
  post: {url: "https://mail.example/v1", key: {value: key_of_the_tests}, headers: {x-team: billing}}
effects:
  receipt: {source: stripe, type: invoice, rule_version: 2, key: "receipt:{{ object.id }}",
    steps: [{name: send, to: mail, path: "/mail"}]}
  mail:
    source: stripe
    type: order
    key: "mail:{{ object.id }}"
    steps:
      - {name: mail, to: post, path: "/mail", headers: {x-key: of_the_rule}, json: {to: "{{ event.key }}"},
         capture: {id: id}}
      - {name: book, to: post, path: "/book/{{ steps.mail.id }}"}
`

// A backtest over HTTP returns the effects of a rule, up to a limit, and writes nothing.
func TestBacktestEffects_rule_listsChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg, err := config.Parse([]byte(`
database: {url: postgres://x/y}
sources:
  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  mail: {url: "https://mail.example"}
effects:
  receipt:
    source: stripe
    type: invoice
    rule_version: 2
    key: "receipt:{{ object.id }}"
    steps: [{name: send, to: mail, path: "/mail"}]
`), func(string) string { return "" })
	must(t, err)
	unknowing := b.handler
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"), Logger: testkit.Logger(t),
		Ready: func(context.Context) error { return nil }, Endpoints: cfg.Endpoints, Rules: cfg.Rules})
	const path = "/effects/backtest?rule=receipt&since=2020-01-01"
	if status, body := b.get(t, "/api/v1"+path); status != 200 || body["dry_run"] != true ||
		body["rule_version"] != 2.0 || len(body["changes"].([]any)) != 0 {
		t.Errorf("%d %v", status, body)
	}
	b.invoices(t, 1, 3)
	status, body := b.get(t, "/api/v1"+path)
	if changes, _ := body["changes"].([]any); status != 200 || len(changes) != 3 ||
		!strings.Contains(fmt.Sprint(changes), "key:receipt:in_1 ") || body["counts"].(map[string]any)["new"] != 3.0 {
		t.Errorf("%d %v", status, body)
	}
	b.db.WantRows(t, 0, "effects") // a dry run writes nothing
	b.wantResponses(t, [][2]string{{"GET /effects/backtest?rule=receipt", "400 name the rule"},
		{"GET /effects/backtest?since=1d", "400 name the rule"},
		{"GET /effects/backtest?rule=other&since=1d", `404 rule "other"`}})
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		state, destination, planned_at, updated_at)
		SELECT 'paid:' || object_id, 1, 'receipt', source, account, object_type, object_id, id, 0, 'done', 'mail',
			now(), now() FROM events WHERE event_id = 'evt_2'`)
	status, body = b.get(t, "/api/v1"+path)
	if changes, _ := body["changes"].([]any); status != 200 || len(changes) != 4 ||
		!strings.Contains(fmt.Sprint(changes), "key:paid:in_2 ledger:gone ") ||
		body["counts"].(map[string]any)["gone"] != 1.0 {
		t.Errorf("%d %v", status, body)
	}
	b.invoices(t, 4, 1000)
	b.wantResponses(t, [][2]string{{"GET " + path, "422 at most 1000"}})
	b.handler = unknowing
	b.wantResponses(t, [][2]string{{"GET " + path, "400 this process has no rules"}})
}
