package admin_test

import (
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
	b.wantItems(t, map[string]string{
		"/effects":                                      "effect 5 4 3 2 1",
		"/effects?state=needs_review&limit=1":           "effect 4",
		"/effects?rule=mail&source=stripe&type=order":   "effect 5 4 3 2 1",
		"/effects?object_type=order&object_id=2":        "effect 2",
		"/effects?event=7":                              "effect 5 4 3 2 1",
		"/effects?key=mail:3&account=":                  "effect 3",
		"/effects?since=2026-01-03":                     "effect ",
		"/effects?until=2026-01-03&state=done":          "effect 5",
		"/effects?source=stripe&type=invoice&rule=mail": "effect ",
	})
	body := b.wantResponses(t, [][2]string{
		{"GET /effects/99", "404"},
		{"GET /effects/99/data", "404"},
		{"GET /effects?state=lost", "400 awaiting_approval, planned"},
		{"GET /effects/3/data", `200 {"effect": 3, "template_data": {"event": {"key": "k"}}}`},
		{"GET /effects/3", `200 {"event_key": "k", "steps": [{"state": "unknown", "captured": {"id": "m_1"},
			"request": "POST /mail", "fingerprint": "01"}]}`},
	})
	if len(body["payload_sha256"].(string)) != 64 || !strings.Contains(body["next"].(string),
		"postern effects resolve 3 --step mail --done, or --not-done") {
		t.Errorf("%v", body)
	}
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
		if got := postAs(b.handler, "/effects/1/approve", `{"reason": "why"}`, "key-1", ""); got.Code != 200 ||
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
		body := fmt.Sprintf(`{"id":"evt_%d","object":"event","type":"invoice.updated","created":%d,`+
			`"data":{"object":{"id":"in_%d","object":"invoice","status":"paid"}}}`, n, at.Unix(), n)
		all = append(all, b.delivery("stripe", body, provider.Event{Key: fmt.Sprint("evt_", n),
			Type: "invoice.updated", ObjectType: "invoice", ObjectID: fmt.Sprint("in_", n), OccurredAt: at,
			Fingerprint: provider.BodyFingerprint([]byte(body))}))
	}
	p, err := apply.New(apply.Options{Pool: b.role(t, "processor"), Settings: apply.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]apply.Source{"stripe": {Number: b.known.Number["stripe"],
			Config: &provider.Source{Name: "stripe"}, Provider: stripe.Stripe{}}}})
	testkit.Must(t, err)
	_, err = p.ApplyStored(t.Context(), apply.Target{}, b.store(t, all...), false)
	testkit.Must(t, err)
}

// Before an approval, an operator reads what is sent, without secrets.
func TestEffectRequests_states_showWhatIsSentNext(t *testing.T) {
	t.Parallel()
	b := changing(t)
	if _, unknowing := b.get(t, "/effects/1/requests"); !strings.Contains(fmt.Sprint(unknowing["omitted"]),
		"the rule mail") {
		t.Errorf("without the rule: %v", unknowing)
	}
	b.handler = admin.New(b.configured(t))
	body := b.wantResponses(t, [][2]string{{"GET /effects/1/requests", `200 {"requests": [
		{"step": "mail", "method": "POST", "address": "https://mail.example/v1/mail", "body": "{\"to\":\"k\"}",
			"headers": {"X-Team": "billing", "Authorization": "***", "X-Key": "***", "Idempotency-Key": "…"},
			"omitted": ""},
		{"step": "book", "method": "", "address": "", "body": "",
			"omitted": "it may depend on the response to the step mail"}]}`}})
	if headers := body["requests"].([]any)[1].(map[string]any)["headers"]; len(headers.(map[string]any)) != 0 {
		t.Errorf("headers of a request that cannot be shown: %v", headers)
	}
	for path, want := range map[string]string{"3": "it was attempted before", "5": "requests:[]", "99": "effect 99"} {
		if _, body := b.get(t, "/effects/"+path+"/requests"); !strings.Contains(fmt.Sprint(body), want) {
			t.Errorf("%s: %v", path, body)
		}
	}
}

// configured are the options of a process with the sources, rules and destinations of mailConfig.
func (b *testBundle) configured(t *testing.T) admin.Options {
	t.Helper()
	cfg, err := config.Parse([]byte(mailConfig), func(string) string { return "" })
	testkit.Must(t, err)
	return admin.Options{Pool: b.role(t, "operator"), Logger: testkit.Logger(t), Endpoints: cfg.Endpoints,
		Rules: cfg.Rules, Destinations: cfg.ResolveDestinations}
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
	const backtest = "GET /effects/backtest?rule=receipt&since=2020-01-01"
	b.wantResponses(t, [][2]string{{backtest, "400 this process has no rules"}})
	b.handler = admin.New(b.configured(t))
	b.wantResponses(t, [][2]string{{backtest, `200 {"dry_run": true, "rule_version": 2, "changes": []}`}})
	b.invoices(t, 1, 3)
	body := b.wantResponses(t, [][2]string{
		{"GET /effects/backtest?rule=receipt", "400 name the rule"},
		{"GET /effects/backtest?since=1d", "400 name the rule"},
		{"GET /effects/backtest?rule=other&since=1d", `404 rule "other"`},
		{backtest, `200 {"changes": [{}, {}, {}], "counts": {"new": 3}}`},
	})
	if !strings.Contains(fmt.Sprint(body), "key:receipt:in_1 ") {
		t.Errorf("%v", body)
	}
	b.db.WantRows(t, 0, "effects") // a dry run writes nothing
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		state, destination, planned_at, updated_at)
		SELECT 'paid:' || object_id, 1, 'receipt', source, account, object_type, object_id, id, 0, 'done', 'mail',
			now(), now() FROM events WHERE event_id = 'evt_2'`)
	body = b.wantResponses(t, [][2]string{{backtest, `200 {"changes": [{}, {}, {}, {}], "counts": {"gone": 1}}`}})
	if !strings.Contains(fmt.Sprint(body), "key:paid:in_2 ledger:gone ") {
		t.Errorf("%v", body)
	}
	b.invoices(t, 4, 1000)
	b.wantResponses(t, [][2]string{{backtest, "422 at most 1000"}})
}
