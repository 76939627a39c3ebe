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

func TestEventPageRefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "[]", `{"object": "event"}`, `{"object": "list", "has_more": true, "data": []}`, `{"object": "list", "data": [{"object": "event"}]}`,
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
