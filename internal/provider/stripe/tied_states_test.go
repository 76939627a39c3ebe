package stripe_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// tiedEvent is an event of one second: its type, its object or body, and its old values.
type tiedEvent struct{ event, object, previous string }

func (e tiedEvent) input(t *testing.T) versioning.Input {
	t.Helper()
	if e.previous == "" {
		e.previous = "null"
	}
	o, err := observe(&provider.Source{}, fmt.Sprintf(`{"id": "evt_1", "object": "event", "created": 100, "type": %q,
		"data": {"object": %s, "previous_attributes": %s}}`, e.event, e.object, e.previous))
	if err != nil {
		t.Fatalf("observe %s: %v", e.event, err)
	}
	in, err := versioning.InputFromObservation(o, time.Unix(105, 0))
	if err != nil {
		t.Fatalf("version of %s: %v", e.event, err)
	}
	return in
}

// The events of an object within one second, with bodies like Stripe's, end in the state of the
// last event in any order, or are ambiguous.
func TestObserve_eventsOfOneSecond_endAsExpected(t *testing.T) {
	t.Parallel()
	const sub, customer, auth = `{"object": "subscription", "id": "sub_1", `, `{"object": "customer", "id": "cus_1", `,
		`{"object": "issuing.authorization", "id": "iauth_1", `
	tests := map[string]struct {
		events    []tiedEvent
		ambiguous bool
	}{
		"created, then changed twice": {events: []tiedEvent{
			{"customer.subscription.created",
				sub + `"status": "incomplete", "metadata": {}, "items": {"data": [{"quantity": 1}]}}`, ""},
			{"customer.subscription.updated",
				sub + `"status": "active", "metadata": {}, "items": {"data": [{"quantity": 1}]}}`,
				`{"status": "incomplete"}`},
			{"customer.subscription.updated",
				sub + `"status": "active", "metadata": {"a": "1"}, "items": {"data": [{"quantity": 2}]}}`,
				`{"metadata": {"a": null}, "items": {"data": [{"quantity": 1}]}}`}}},
		"changed, then canceled": {events: []tiedEvent{
			{"customer.subscription.updated", sub + `"status": "active", "quantity": 2}`, `{"quantity": 1}`},
			{"customer.subscription.deleted", sub + `"status": "canceled", "quantity": 2}`, ""}}},
		"metadata key removed": {events: []tiedEvent{
			{"customer.updated", customer + `"name": "Ada", "metadata": {"a": "1"}}`, `{"name": null}`},
			{"customer.updated", customer + `"name": "Ada", "metadata": {}}`, `{"metadata": {"a": "1"}}`}}},
		"null, set, and changed inside": {events: []tiedEvent{
			{"customer.updated", customer + `"address": {"city": "Bern", "line1": null}}`, `{"address": null}`},
			{"customer.updated", customer + `"address": {"city": "Bern", "line1": "1 High St"}}`,
				`{"address": {"line1": null}}`}}},
		"set back to null": {events: []tiedEvent{
			{"customer.updated", customer + `"address": {"city": "Bern"}}`, `{"address": {"city": "Biel"}}`},
			{"customer.updated", customer + `"address": null}`, `{"address": {"city": "Bern"}}`}}},
		"changed, then deleted": {events: []tiedEvent{
			{"customer.updated", customer + `"name": "Ada"}`, `{"name": null}`},
			{"customer.deleted", customer + `"name": "Ada"}`, ""}}},
		"requested, created, changed": {events: []tiedEvent{
			{"issuing_authorization.request", auth + `"status": "pending", "pending_request": {}}`, ""},
			{"issuing_authorization.created", auth + `"status": "pending", "pending_request": null}`, ""},
			{"issuing_authorization.updated", auth + `"status": "pending", "metadata": {"a": "1"}}`,
				`{"metadata": {"a": null}}`}}},
		"created, deleted and created again": {ambiguous: true, events: []tiedEvent{
			{"coupon.created", `{"object": "coupon", "id": "25OFF", "percent_off": 20}`, ""},
			{"coupon.deleted", `{"object": "coupon", "id": "25OFF", "percent_off": 20}`, ""},
			{"coupon.created", `{"object": "coupon", "id": "25OFF", "percent_off": 25}`, ""}}},
		"canceled, then changed": {ambiguous: true, events: []tiedEvent{
			{"customer.subscription.deleted", sub + `"status": "canceled", "metadata": {}}`, ""},
			{"customer.subscription.updated", sub + `"status": "canceled", "metadata": {"a": "1"}}`,
				`{"metadata": {"a": null}}`}}},
		"own version does not advance at the delete": {ambiguous: true, events: []tiedEvent{
			{"product.updated", `{"object": "product", "id": "prod_1", "updated": 100, "name": "Tea"}`,
				`{"name": "Te"}`},
			{"product.deleted", `{"object": "product", "id": "prod_1", "updated": 100, "name": "Tea"}`, ""}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inputs := make([]versioning.Input, len(test.events))
			for i, e := range test.events {
				inputs[i] = e.input(t)
			}
			providertest.CheckEnd(t, inputs, test.ambiguous)
		})
	}
}

// makeVariant returns the input of the n-th variant of a sample.
func makeVariant(t *testing.T, s provider.Sample, n int, at time.Time) versioning.Input {
	t.Helper()
	v, err := stripe.Stripe{}.MakeVariant(s, n, at, false)
	testkit.Must(t, err)
	o, err := observe(&provider.Source{}, string(v.Body))
	if err != nil {
		t.Fatalf("observe %s: %v", s.Type, err)
	}
	in, err := versioning.InputFromObservation(o, at.Add(5*time.Second))
	testkit.Must(t, err)
	return in
}

// Updates of one second contain the old values of the update before, so that their order is known.
func TestMakeVariant_updates_formAChain(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (stripe.Stripe{}).Samples() {
		if !strings.HasSuffix(s.Type, ".updated") || strings.HasPrefix(s.Type, "v2.") {
			continue
		}
		var chain []versioning.Input
		for n := range 4 {
			chain = append(chain, makeVariant(t, s, n+1, at))
		}
		providertest.CheckEnd(t, chain, false)
	}
}
