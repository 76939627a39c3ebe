package stripe_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// A page tells the same events as webhooks: same key, same fingerprint, same object.
func TestEventPageTellsWhatWebhooksTell(t *testing.T) {
	t.Parallel()
	const (
		listed    = `{"id": "evt_1", "object": "event", "type": "customer.updated", "created": 5, "pending_webhooks": 0, "data": {"object": {"object": "customer", "id": "cus_1", "n": 1.50}}}`
		other     = `{"id": "evt_0", "object": "event", "account": null}`
		delivered = `{"id": "evt_1", "account": "acct_1", "object": "event", "type": "customer.updated", "created": 5, "pending_webhooks": 2, "data": {"object": {"object": "customer", "id": "cus_1", "n": 1.5}}}`
		page      = `{"object": "list", "url": "/v1/events", "has_more": true, "data": [` + listed + ", " + other + `]}`
	)
	bodies, next, err := stripe.Stripe{}.EventPage("acct_1/test", []byte(page))
	if err != nil || len(bodies) != 2 || next != "evt_0" {
		t.Fatalf("%q, %q, %v", bodies, next, err)
	}
	name := func(body []byte) provider.Event {
		events, err := stripe.Stripe{}.Identify(&provider.Source{}, &provider.Delivery{Body: body})
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %v, %v", body, events, err)
		}
		return events[0]
	}
	if got, want := name(bodies[0]), name([]byte(delivered)); got != want {
		t.Errorf("%+v, as a webhook %+v", got, want)
	}
	if got := name(bodies[1]); got.Account != "acct_1" {
		t.Errorf("an account that is null is none: %+v", got)
	}
	if !strings.Contains(page, listed) {
		t.Error("the page was written over")
	}
	own, next, err := stripe.Stripe{}.EventPage("", []byte(strings.Replace(page, "true", "false", 1)))
	if err != nil || next != "" || string(own[0]) != listed {
		t.Errorf("%s, %q, %v", own, next, err)
	}
}

// A thin event is listed with more than its webhook carries, and is the same event all the same; another one is not.
func TestEventPageTellsThinEvents(t *testing.T) {
	t.Parallel()
	const (
		webhook = `{"id":"evt_1","object":"v2.core.event","type":"v2.core.account.updated","created":"2026-01-01T00:00:00.250Z","livemode":false,"context":"acct_1","reason":null,"related_object":{"id":"acct_2","type":"v2.core.account","url":"/v2/core/accounts/acct_2"}}`
		listed  = `{"id":"evt_1","object":"v2.core.event","type":"v2.core.account.updated","created":"2026-01-01T00:00:00.250Z","livemode":false,"related_object":{"id":"acct_2","type":"v2.core.account"},"changes":{"before":{}},"data":{"n":1}}`
	)
	fingerprint := func(body []byte) [16]byte {
		events, err := stripe.Stripe{}.Identify(&provider.Source{}, &provider.Delivery{Body: body})
		if err != nil || len(events) != 1 || events[0].Key != "evt_1" || events[0].Account != "acct_1" || events[0].ObjectID == "" {
			t.Fatalf("%s: %+v (%v)", body, events, err)
		}
		return events[0].Fingerprint
	}
	bodies, next, err := stripe.Stripe{}.EventPage("acct_1", []byte(`{"data": [`+listed+`], "next_page_url": "/v2/core/events?page=p1&limit=1", "previous_page_url": null}`))
	if err != nil || len(bodies) != 1 || next != "page=p1&limit=1" || fingerprint(bodies[0]) != fingerprint([]byte(webhook)) {
		t.Errorf("%s, next %q (%v)", bodies, next, err)
	}
	for told, other := range map[string]string{`"acct_2"`: `"acct_3"`, "00.250Z": "00.251Z", "account.updated": "account.closed"} {
		if fingerprint([]byte(strings.Replace(webhook, told, other, 1))) == fingerprint([]byte(webhook)) {
			t.Errorf("with %s in the place of %s it is the same event", other, told)
		}
	}
	for body, want := range map[string]string{`{"data": [], "next_page_url": null}`: "", `{"data": []}`: ""} {
		if bodies, next, err := (stripe.Stripe{}).EventPage("", []byte(body)); err != nil || len(bodies) != 0 || next != want {
			t.Errorf("%s: %q, %q, %v", body, bodies, next, err)
		}
	}
}

func TestEventPageRefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "[]", `{"data": null}`, `{"data": [], "next_page_url": "https://elsewhere.example/v2"}`, `{"object": "event"}`, `{"object": "list", "has_more": true, "data": []}`, `{"object": "list", "data": [{"object": "event"}]}`,
		`{"object": "list", "data": [null]}`, `{"object": "list", "data": ["evt_1"]}`} {
		if bodies, next, err := (stripe.Stripe{}).EventPage("", []byte(body)); err == nil {
			t.Errorf("%s: %q, %q", body, bodies, next)
		}
	}
	if bodies, next, err := (stripe.Stripe{}).EventPage("", []byte(`{"object": "list", "data": []}`)); err != nil || len(bodies) != 0 || next != "" {
		t.Errorf("an empty page: %q, %q, %v", bodies, next, err)
	}
}

// Whatever a page holds, what comes of it are events with an id and the account's.
func FuzzEventPage(f *testing.F) {
	f.Add([]byte(`{"object": "list", "has_more": true, "data": [{"id": "evt_1", "object": "event", "type": "x"}]}`), "acct_1")
	f.Add([]byte(`{"object": "list", "data": [{"id": "evt_1", "account": "acct_2"}, {}]}`), "test")
	f.Add([]byte(`{"object": "list", "data": [{"id": "evt_1", "ID": ""} ]}`), "a\"b\xff")
	f.Fuzz(func(t *testing.T, page []byte, account string) {
		bodies, next, err := stripe.Stripe{}.EventPage(account, page)
		if err != nil && (bodies != nil || next != "") {
			t.Fatalf("an error and %q, %q", bodies, next)
		}
		for _, body := range bodies {
			if !strings.HasPrefix(string(body), "{") || !strings.HasSuffix(string(body), "}") {
				t.Fatalf("no object: %q", body)
			}
		}
	})
}
