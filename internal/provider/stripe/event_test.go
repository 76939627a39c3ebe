package stripe_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

func identify(t *testing.T, src *provider.Source, body string) provider.Event {
	t.Helper()
	events, err := stripe.Stripe{}.Identify(src, &provider.Delivery{Body: []byte(body)})
	if err != nil || len(events) != 1 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events[0]
}

func observe(src *provider.Source, body string) (provider.Observation, error) {
	return stripe.Stripe{}.Observe(src, &provider.StoredEvent{Body: []byte(body)})
}

const snapshot = `{"id": "evt_1", "object": "event", "api_version": "2026-08-26.dahlia", "created": 100,
	"type": "customer.updated",
	"data": {"object": {"object": "customer", "id": "cus_1"}}%s}`

func TestIdentify_event_isNamed(t *testing.T) {
	t.Parallel()
	got := identify(t, &provider.Source{}, fmt.Sprintf(snapshot, `, "account": "acct_1"`))
	want := provider.Event{
		Key: "evt_1", Type: "customer.updated", Account: "acct_1", ObjectType: "customer", ObjectID: "cus_1",
		OccurredAt: time.Unix(100, 0).UTC(), APIVersion: "2026-08-26.dahlia", VersionSigned: true,
		Fingerprint: got.Fingerprint,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// An invalid id gives a content key, never an empty key.
func TestIdentify_bodies_keyIsNeverEmpty(t *testing.T) {
	t.Parallel()
	for _, id := range []string{`""`, `null`, `7`, `{}`, `"a\u0000b"`, `"a\ud800"`, `"` + strings.Repeat("x", 256) +
		`"`} {
		e := identify(t, &provider.Source{}, `{"id": `+id+`, "type": "customer.updated"}`)
		if !e.ContentKey || !strings.HasPrefix(e.Key, "sha256:") || e.Type != "customer.updated" {
			t.Errorf("id %s: %+v", id, e)
		}
	}
}

// Two deliveries of one event differ in pending_webhooks and in formatting; any other difference is
// different content.
func TestIdentify_fingerprint_ignoresPendingWebhooks(t *testing.T) {
	t.Parallel()
	of := func(more string) [16]byte {
		return identify(t, &provider.Source{}, fmt.Sprintf(snapshot, more)).Fingerprint
	}
	if of(`, "pending_webhooks": 2`) != of(` ,"pending_webhooks":0 `) {
		t.Error("pending_webhooks changes the fingerprint")
	}
	if of("") == of(`, "livemode": true`) {
		t.Error("different contents have the same fingerprint")
	}
}

func TestIdentify_accounts_areAllowedOrRejected(t *testing.T) {
	t.Parallel()
	connected, own := fmt.Sprintf(snapshot, `, "account": "acct_2"`), fmt.Sprintf(snapshot, "")
	tests := map[string]struct {
		src  provider.Source
		body string
		// want is the account, or "rejected" for a rejection.
		want string
	}{
		"any account":              {provider.Source{}, connected, "acct_2"},
		"own account":              {provider.Source{}, own, ""},
		"listed":                   {provider.Source{Accounts: []string{"acct_1", "acct_2"}}, connected, "acct_2"},
		"any account is listed":    {provider.Source{Accounts: []string{"*"}}, connected, "acct_2"},
		"not listed":               {provider.Source{Accounts: []string{"acct_1"}}, connected, "rejected"},
		"own account is not named": {provider.Source{Accounts: []string{"acct_1"}}, own, ""},
		"pinned":                   {provider.Source{Account: "acct_2"}, connected, "acct_2"},
		"the source's own account": {provider.Source{Account: "acct_2"}, own, "acct_2"},
		"another own account":      {provider.Source{Account: "acct_1"}, connected, "rejected"},
		"id-only, listed": {provider.Source{Accounts: []string{"acct_2"}},
			`{"object": "v2.core.event", "id": "evt_1", "type": "x", "context": "acct_2",
			"created": "2026-01-01T00:00:00.5Z", "related_object": {"id": "a", "type": "b"}}`, "acct_2"},
		"id-only, not listed": {provider.Source{Accounts: []string{"acct_1"}},
			`{"object": "v2.core.event", "id": "evt_1", "context": "acct_2"}`, "rejected"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			events, err := stripe.Stripe{}.Identify(&test.src, &provider.Delivery{Body: []byte(test.body)})
			var r *provider.Rejection
			if rejected := errors.As(err, &r) &&
				r.Reason == provider.ForbiddenAccount; rejected != (test.want == "rejected") {
				t.Fatalf("identify: %v, want %s", err, test.want)
			}
			if err != nil {
				return
			}
			o, err := observe(&test.src, test.body)
			if err != nil || events[0].Account != test.want || o.Account != test.want {
				t.Errorf("event of %q, object of %q, %v; want %q", events[0].Account, o.Account, err, test.want)
			}
		})
	}
}

// Only objects whose id can exist in both modes are mirrored separately by mode.
func TestObserve_modes_areSeparateAccounts(t *testing.T) {
	t.Parallel()
	tests := []struct{ object, more, want string }{
		{`{"object": "customer", "id": "cus_1"}`, `, "livemode": false`, ""},
		{`{"object": "coupon", "id": "25OFF"}`, `, "livemode": true`, ""},
		{`{"object": "coupon", "id": "25OFF"}`, ``, ""},
		{`{"object": "coupon", "id": "25OFF"}`, `, "livemode": false`, "test"},
		{`{"object": "plan", "id": "gold"}`, `, "livemode": false, "account": "acct_1"`, "acct_1/test"},
		{`{"object": "product", "id": "prod_1"}`, `, "livemode": false`, "test"},
		{`{"object": "product", "id": "prod_1"}`, `, "livemode": true`, ""},
		{`{"object": "reporting.report_type", "id": "balance.summary.1"}`, `, "livemode": false`, "test"},
		{`{"object": "product", "id": "team"}`, `, "livemode": false`, "test"},
		{`{"object": "account", "id": "acct_1"}`, `, "livemode": false, "account": "acct_1"`, "acct_1/test"},
		{`{"object": "balance"}`, `, "livemode": false`, "test"},
		{`{"object": "capability", "id": "card_payments", "account": "acct_1"}`, `, "livemode": false`, "test"},
	}
	for _, test := range tests {
		body := fmt.Sprintf(`{"id": "evt_1", "type": "x.updated", "created": 100, "data": {"object": %s}%s}`,
			test.object, test.more)
		o, err := observe(&provider.Source{}, body)
		if e := identify(t, &provider.Source{}, body); err != nil || o.Account != test.want || e.Account != test.want {
			t.Errorf("%s%s: object of %q, event of %q, %v; want %q", test.object, test.more, o.Account, e.Account, err,
				test.want)
		}
	}
}

// previous_attributes is used in any event type, except if it is empty or the event is a delete.
func TestObserve_previousAttributes_giveStateBefore(t *testing.T) {
	t.Parallel()
	const customer = `{"object": "customer", "id": "cus_1"}`
	tests := []struct {
		event, previous string
		want            bool
	}{
		{"customer.updated", `{"name": null}`, true},
		{"customer.renamed", `{"name": null}`, true},
		{"customer.updated", `{}`, false},
		{"customer.updated", `null`, false},
		{"customer.updated", `[]`, false},
		{"customer.deleted", `{"name": null}`, false},
	}
	for _, test := range tests {
		o, err := observe(&provider.Source{}, fmt.Sprintf(`{"id": "evt_1", "type": %q, "created": 100, `+
			`"data": {"object": %s, "previous_attributes": %s}}`, test.event, customer, test.previous))
		if err != nil || (o.Before != nil) != test.want {
			t.Errorf("%s with %s: before %v, %v", test.event, test.previous, o.Before != nil, err)
		}
	}
}

// A product's own version may not advance, so the event's time extends its time range.
func TestObserve_ownVersion_hasEventTimeEnd(t *testing.T) {
	t.Parallel()
	body := `{"id":"evt_1","object":"event","type":"product.updated","created":1800000010,"livemode":true,` +
		`"data":{"object":{"id":"prod_1","object":"product","updated":1800000000}}}`
	o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.StoredEvent{Body: []byte(body)})
	if err != nil || o.At != 1_800_000_000_000_000 || !o.OwnVersion || o.EventTimeEnd != 1_800_000_010_999_999 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestObserve_idOnlyEvents_arePartial(t *testing.T) {
	t.Parallel()
	const partial = "partial: an id-only event names its object and contains no state"
	tests := []struct{ more, want string }{
		{`"context": "acct_1", "created": "2026-01-01T00:00:00.250Z", ` +
			`"related_object": {"id": "meter_1", "type": "v1.billing.meter"}`,
			"acct_1 v1.billing.meter meter_1, at 1767225600250000/1000, " + partial},
		{`"created": "soon", "related_object": {"id": "meter_1", "type": "v1.billing.meter"}`,
			"v1.billing.meter meter_1, " + partial},
		{`"livemode": false, "created": "soon", "related_object": {"id": "25OFF", "type": "coupon"}`,
			"test coupon 25OFF, " + partial},
		{`"created": "2026-01-01T00:00:00.250Z"`, "ignored: the event has no object"},
		{`"related_object": {"type": "v1.billing.meter"}`, "ignored: the event's object has no id, so it cannot be " +
			"mirrored"},
	}
	for _, test := range tests {
		got := providertest.Summary(observe(&provider.Source{},
			`{"id": "evt_1", "object": "v2.core.event", "type": "x", `+test.more+`}`))
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.more, got, test.want)
		}
	}
}

func TestObserve_malformedEvents_areDead(t *testing.T) {
	t.Parallel()
	const customer = `"data": {"object": {"object": "customer", "id": "cus_1"}}`
	tests := []string{
		`{"id": "evt_1", }`,
		`{"id": "evt_1", "type": "customer.updated", ` + customer + `}`,
		`{"id": "evt_1", "type": "customer.updated", "created": "now", ` + customer + `}`,
		`{"id": "evt_1", "type": "customer.updated", "created": 9223372036854775807, ` + customer + `}`,
		`{"id": "evt_1", "type": "customer.updated", "created": -5, ` + customer + `}`,
		`{"id": "evt_1", "type": "customer.updated", "created": 100, ` +
			`"data": {"object": {"object": "customer", "id": "cus\u00001"}}}`,
		`{"id": "evt_1", "type": "customer.updated", "created": 100, "account": "acct\u0000", ` + customer + `}`,
	}
	for _, body := range tests {
		_, err := observe(&provider.Source{}, body)
		if dead := new(provider.Dead); !errors.As(err, &dead) {
			t.Errorf("%s: %v, want dead", body, err)
		}
		identify(t, &provider.Source{}, body)
	}
}

// A page contains the same events as webhooks: with equal keys, fingerprints and objects.
func TestEventPage_events_equalWebhooks(t *testing.T) {
	t.Parallel()
	const (
		listed = `{"id": "evt_1", "object": "event", "type": "customer.updated", "created": 5, ` +
			`"pending_webhooks": 0, "data": {"object": {"object": "customer", "id": "cus_1", "n": 1.50}}}`
		other     = `{"id": "evt_0", "object": "event", "account": null}`
		delivered = `{"id": "evt_1", "account": "acct_1", "object": "event", "type": "customer.updated", ` +
			`"created": 5, "pending_webhooks": 2, "data": {"object": {"object": "customer", "id": "cus_1", "n": 1.5}}}`
		page = `{"object": "list", "url": "/v1/events", "has_more": true, "data": [` + listed + ", " + other + `]}`
	)
	bodies, next, err := stripe.Stripe{}.EventPage("acct_1/test", []byte(page))
	if err != nil || len(bodies) != 2 || next != "evt_0" {
		t.Fatalf("%q, %q, %v", bodies, next, err)
	}
	name := func(body string) provider.Event { return identify(t, &provider.Source{}, body) }
	if got, want := name(string(bodies[0])), name(delivered); got != want {
		t.Errorf("%+v, as a webhook %+v", got, want)
	}
	if got := name(string(bodies[1])); got.Account != "acct_1" {
		t.Errorf("a null account is used: %+v", got)
	}
	if !strings.Contains(page, listed) {
		t.Error("the page was changed")
	}
	own, next, err := stripe.Stripe{}.EventPage("", []byte(strings.Replace(page, "true", "false", 1)))
	if err != nil || next != "" || string(own[0]) != listed {
		t.Errorf("%s, %q, %v", own, next, err)
	}
}

// A listed id-only event contains more than its webhook, but is the same event. An event with other
// names is another event.
func TestEventPage_idOnlyEvents_equalWebhooks(t *testing.T) {
	t.Parallel()
	const (
		webhook = `{"id":"evt_1","object":"v2.core.event","type":"v2.core.account.updated",` +
			`"created":"2026-01-01T00:00:00.250Z","livemode":false,"context":"acct_1","reason":null,` +
			`"related_object":{"id":"acct_2","type":"v2.core.account","url":"/v2/core/accounts/acct_2"}}`
		listed = `{"id":"evt_1","object":"v2.core.event","type":"v2.core.account.updated",` +
			`"created":"2026-01-01T00:00:00.250Z","livemode":false,` +
			`"related_object":{"id":"acct_2","type":"v2.core.account"},"changes":{"before":{}},"data":{"n":1}}`
	)
	fingerprint := func(body string) [16]byte {
		e := identify(t, &provider.Source{}, body)
		if e.Key != "evt_1" || e.Account != "acct_1" || e.ObjectID == "" {
			t.Fatalf("%s: %+v", body, e)
		}
		return e.Fingerprint
	}
	bodies, next, err := stripe.Stripe{}.EventPage("acct_1",
		[]byte(`{"data": [`+listed+`], "next_page_url": "/v2/core/events?page=p1&limit=1", "previous_page_url": null}`))
	if err != nil || len(bodies) != 1 || next != "page=p1&limit=1" ||
		fingerprint(string(bodies[0])) != fingerprint(webhook) {
		t.Errorf("%s, next %q (%v)", bodies, next, err)
	}
	for text, replacement := range map[string]string{`"acct_2"`: `"acct_3"`, "00.250Z": "00.251Z",
		"account.updated": "account.closed"} {
		if fingerprint(strings.Replace(webhook, text, replacement, 1)) == fingerprint(webhook) {
			t.Errorf("with %s instead of %s it is the same event", replacement, text)
		}
	}
}

func TestEventPage_malformedOrEmptyPage_isErrorOrEnd(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "[]", `{"data": null}`,
		`{"data": [], "next_page_url": "https://elsewhere.example/v2"}`, `{"object": "event"}`,
		`{"object": "list", "has_more": true, "data": []}`, `{"object": "list", "data": [{"object": "event"}]}`,
		`{"object": "list", "data": [null]}`, `{"object": "list", "data": ["evt_1"]}`} {
		if bodies, next, err := (stripe.Stripe{}).EventPage("", []byte(body)); err == nil {
			t.Errorf("%s: %q, %q", body, bodies, next)
		}
	}
	for _, empty := range []string{`{"object": "list", "data": []}`, `{"data": [], "next_page_url": null}`,
		`{"data": []}`} {
		if bodies, next, err := (stripe.Stripe{}).EventPage("", []byte(empty)); err != nil || len(bodies) != 0 ||
			next != "" {
			t.Errorf("%s: %q, %q, %v", empty, bodies, next, err)
		}
	}
}

// From any page, the events have an id and the page's account.
func FuzzEventPage(f *testing.F) {
	f.Add([]byte(`{"object": "list", "has_more": true, "data": [{"id": "evt_1", "object": "event", "type": "x"}]}`),
		"acct_1")
	f.Add([]byte(`{"object": "list", "data": [{"id": "evt_1", "account": "acct_2"}, {}]}`), "test")
	f.Add([]byte(`{"object": "list", "data": [{"id": "evt_1", "ID": ""} ]}`), "a\"b\xff")
	f.Fuzz(func(t *testing.T, page []byte, account string) {
		bodies, next, err := stripe.Stripe{}.EventPage(account, page)
		if err != nil && (bodies != nil || next != "") {
			t.Fatalf("both an error and %q, %q", bodies, next)
		}
		for _, body := range bodies {
			if !strings.HasPrefix(string(body), "{") || !strings.HasSuffix(string(body), "}") {
				t.Fatalf("no object: %q", body)
			}
		}
	})
}
