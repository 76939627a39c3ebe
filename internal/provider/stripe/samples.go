package stripe

import (
	"embed"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

//go:embed samples/*.json
var files embed.FS

// sampleStart is the time of the first sample.
var sampleStart = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// version is the API version of the samples.
const version = "2026-08-26.dahlia"

// step is one event of the samples' story: a customer subscribes, pays, and leaves. Events of one
// object share its file and id, so invoice.created and invoice.paid are about one invoice.
type step struct {
	event string
	// after is in seconds from the start.
	after  int
	object string
	// change is laid over the object. before becomes previous_attributes.
	change, before string
}

// Consecutive states of an invoice.
const (
	finalizedInvoice = `"status": "open", "number": "7C1D90AE-0001", "auto_advance": true, "effective_at": 1767225605,
		"automatically_finalizes_at": null,
		"status_transitions": {"finalized_at": 1767225605, "marked_uncollectible_at": null, "paid_at": null,
		"voided_at": null},
		"hosted_invoice_url": "https://invoice.stripe.com/i/postern-demo",
		"invoice_pdf": "https://pay.stripe.com/invoice/postern-demo/pdf"`
	attemptedInvoice = `"attempted": true, "attempt_count": 1, "webhooks_delivered_at": 1767225603`
)

var story = []step{
	{event: "product.created", object: "product"},
	{event: "price.created", after: 1, object: "price"},
	{event: "product.updated", after: 60, object: "product", change: `{"name": "Team Plus", "updated": 1767225660}`,
		before: `{"name": "Team", "updated": 1767225600}`},
	{event: "product.deleted", after: 90 * 86400, object: "product",
		change: `{"name": "Team Plus", "active": false, "updated": 1774915200}`},
	{event: "customer.created", object: "customer"},
	{event: "customer.updated", after: 30, object: "customer",
		change: `{"email": "ada@carter.example", "metadata": {"workspace": "4711", "plan": "team", "seats": "5"}}`,
		before: `{"email": "ada.carter@postern.example", "metadata": {"seats": null}}`},
	{event: "customer.deleted", after: 89 * 86400, object: "customer"},
	{event: "checkout.session.completed", after: 10, object: "checkout_session"},
	{event: "customer.subscription.created", after: 3, object: "subscription", change: `{"status": "incomplete"}`},
	{event: "customer.subscription.updated", after: 8, object: "subscription", before: `{"status": "incomplete"}`},
	{event: "customer.subscription.deleted", after: 60 * 86400, object: "subscription",
		change: `{"status": "canceled", "canceled_at": 1772409600,
		"ended_at": 1772409600,
		"cancellation_details": {"reason": "cancellation_requested", "feedback": "unused", "comment": null}}`},
	{event: "invoice.created", after: 4, object: "invoice"},
	{event: "invoice.finalized", after: 5, object: "invoice", change: `{` + finalizedInvoice + `}`},
	{event: "invoice.payment_failed", after: 6, object: "invoice", change: `{` + finalizedInvoice + `, ` +
		attemptedInvoice + `,
		"next_payment_attempt": 1767484800}`},
	{event: "invoice.paid", after: 9, object: "invoice", change: `{` + finalizedInvoice + `, ` +
		attemptedInvoice + `, "status": "paid", "amount_paid": 11400,
		"amount_remaining": 0, "next_payment_attempt": null,
		"status_transitions": {"finalized_at": 1767225605, "marked_uncollectible_at": null, "paid_at": 1767225609,
		"voided_at": null}}`},
	{event: "payment_intent.created", after: 5, object: "payment_intent"},
	{event: "payment_intent.succeeded", after: 7, object: "payment_intent",
		change: `{"status": "succeeded", "amount_received": 11400,
		"latest_charge": "ch_3Postern0Jan0001", "payment_method": "pm_1Postern0Card0001"}`},
	{event: "charge.succeeded", after: 7, object: "charge"},
	{event: "charge.refunded", after: 86400, object: "charge", change: `{"refunded": true, "amount_refunded": 11400}`,
		before: `{"amount_refunded": 0,
		"receipt_url": "https://pay.stripe.com/receipts/invoices/postern-demo-0", "refunded": false}`},
	{event: "payout.paid", after: 2 * 86400, object: "payout"},
}

// Samples returns the events of the story and one id-only event.
func (Stripe) Samples() []provider.Sample {
	out := make([]provider.Sample, 0, len(story)+1)
	for i, s := range story {
		out = append(out, provider.Sample{Type: s.event, Body: s.body(i)})
	}
	return append(out, idOnlySample())
}

// body returns the event as Stripe sends it, indented.
func (s step) body(n int) []byte {
	at := sampleStart.Add(time.Duration(s.after) * time.Second)
	object := provider.SampleObject(files, "samples/"+s.object+".json", s.change)
	data := map[string]any{"object": object}
	if s.before != "" {
		data["previous_attributes"] = json.RawMessage(s.before)
	}
	token := provider.SampleToken(s.event, n, at)
	return provider.SampleJSON(map[string]any{
		"id": "evt_1" + hex.EncodeToString(token[:12]), "object": "event", "api_version": version, "created": at.Unix(),
		"data":     data,
		"livemode": false, "pending_webhooks": 1, "type": s.event,
		"request": map[string]any{"id": "req_" + hex.EncodeToString(token[12:19]), "idempotency_key": nil},
	}, "  ")
}

func idOnlySample() provider.Sample {
	const kind = "v2.core.account.updated"
	token := provider.SampleToken(kind, 0, sampleStart)
	return provider.Sample{Type: kind, Body: provider.SampleJSON(map[string]any{
		"id": "evt_test_6" + hex.EncodeToString(token[:12]), "object": "v2.core.event", "type": kind, "livemode": false,
		"created": "2026-01-01T00:00:00.250Z", "context": nil, "reason": nil,
		"related_object": map[string]any{"id": "acct_1Postern0Shop0001", "type": "v2.core.account",
			"url": "/v2/core/accounts/acct_1Postern0Shop0001"},
	}, "  ")}
}
