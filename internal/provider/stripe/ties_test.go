package stripe_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/versioning"
)

// happened is an event of one second: its type, its object and what previous_attributes says, "" for none.
type happened struct{ event, object, previous string }

func (h happened) input(t *testing.T) versioning.Input {
	t.Helper()
	if h.previous == "" {
		h.previous = "null"
	}
	o, err := observe(&provider.Source{}, fmt.Sprintf(`{"id": "evt_1", "object": "event", "created": 100, "type": %q,
		"data": {"object": %s, "previous_attributes": %s}}`, h.event, h.object, h.previous))
	if err != nil {
		t.Fatalf("observe %s: %v", h.event, err)
	}
	in, err := versioning.FromObservation(o, time.Unix(105, 0))
	if err != nil {
		t.Fatalf("version of %s: %v", h.event, err)
	}
	return in
}

// What happens to an object within one second, in bodies shaped like Stripe's, ends as its last event says in whatever
// order the events come, or is known to be ambiguous.
func TestWithinOneSecond(t *testing.T) {
	t.Parallel()
	const sub, customer, auth = `{"object": "subscription", "id": "sub_1", `, `{"object": "customer", "id": "cus_1", `, `{"object": "issuing.authorization", "id": "iauth_1", `
	tests := map[string]struct {
		events    []happened
		ambiguous bool
	}{
		"created, then changed twice": {events: []happened{
			{"customer.subscription.created", sub + `"status": "incomplete", "metadata": {}, "items": {"data": [{"quantity": 1}]}}`, ""},
			{"customer.subscription.updated", sub + `"status": "active", "metadata": {}, "items": {"data": [{"quantity": 1}]}}`, `{"status": "incomplete"}`},
			{"customer.subscription.updated", sub + `"status": "active", "metadata": {"a": "1"}, "items": {"data": [{"quantity": 2}]}}`,
				`{"metadata": {"a": null}, "items": {"data": [{"quantity": 1}]}}`}}},
		"changed, then canceled": {events: []happened{
			{"customer.subscription.updated", sub + `"status": "active", "quantity": 2}`, `{"quantity": 1}`},
			{"customer.subscription.deleted", sub + `"status": "canceled", "quantity": 2}`, ""}}},
		"a key of metadata taken out": {events: []happened{
			{"customer.updated", customer + `"name": "Ada", "metadata": {"a": "1"}}`, `{"name": null}`},
			{"customer.updated", customer + `"name": "Ada", "metadata": {}}`, `{"metadata": {"a": "1"}}`}}},
		"null, set, and changed inside": {events: []happened{
			{"customer.updated", customer + `"address": {"city": "Bern", "line1": null}}`, `{"address": null}`},
			{"customer.updated", customer + `"address": {"city": "Bern", "line1": "1 High St"}}`, `{"address": {"line1": null}}`}}},
		"set back to null": {events: []happened{
			{"customer.updated", customer + `"address": {"city": "Bern"}}`, `{"address": {"city": "Biel"}}`},
			{"customer.updated", customer + `"address": null}`, `{"address": {"city": "Bern"}}`}}},
		"changed, then deleted": {events: []happened{
			{"customer.updated", customer + `"name": "Ada"}`, `{"name": null}`},
			{"customer.deleted", customer + `"name": "Ada"}`, ""}}},
		"asked, created, changed": {events: []happened{
			{"issuing_authorization.request", auth + `"status": "pending", "pending_request": {}}`, ""},
			{"issuing_authorization.created", auth + `"status": "pending", "pending_request": null}`, ""},
			{"issuing_authorization.updated", auth + `"status": "pending", "metadata": {"a": "1"}}`, `{"metadata": {"a": null}}`}}},
		"made, deleted and made again": {ambiguous: true, events: []happened{
			{"coupon.created", `{"object": "coupon", "id": "25OFF", "percent_off": 20}`, ""},
			{"coupon.deleted", `{"object": "coupon", "id": "25OFF", "percent_off": 20}`, ""},
			{"coupon.created", `{"object": "coupon", "id": "25OFF", "percent_off": 25}`, ""}}},
		"canceled, then changed": {ambiguous: true, events: []happened{
			{"customer.subscription.deleted", sub + `"status": "canceled", "metadata": {}}`, ""},
			{"customer.subscription.updated", sub + `"status": "canceled", "metadata": {"a": "1"}}`, `{"metadata": {"a": null}}`}}},
		"its own version stands still at the delete": {ambiguous: true, events: []happened{
			{"product.updated", `{"object": "product", "id": "prod_1", "updated": 100, "name": "Tea"}`, `{"name": "Te"}`},
			{"product.deleted", `{"object": "product", "id": "prod_1", "updated": 100, "name": "Tea"}`, ""}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inputs := make([]versioning.Input, len(test.events))
			for i, h := range test.events {
				inputs[i] = h.input(t)
			}
			providertest.Ends(t, inputs, test.ambiguous)
		})
	}
}

// varied is what the n-th event of a sample says.
func varied(t *testing.T, s provider.Sample, n int, at time.Time) versioning.Input {
	t.Helper()
	v, err := stripe.Stripe{}.Vary(s, n, at, false)
	if err != nil {
		t.Fatal(err)
	}
	o, err := observe(&provider.Source{}, string(v.Body))
	if err != nil {
		t.Fatalf("observe %s: %v", s.Type, err)
	}
	in, err := versioning.FromObservation(o, at.Add(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// Updates of one second name the one before as what they changed, so that their order can be told.
func TestVariedUpdatesFormAChain(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (stripe.Stripe{}).Samples() {
		if !strings.HasSuffix(s.Type, ".updated") || strings.HasPrefix(s.Type, "v2.") {
			continue
		}
		var chain []versioning.Input
		for n := range 4 {
			chain = append(chain, varied(t, s, n+1, at))
		}
		providertest.Ends(t, chain, false)
	}
}
