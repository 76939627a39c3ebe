// Package square is the provider Square. The signature covers the entered address and the body, but
// no time. Many objects have an integer version, which orders them. The events of an order name it
// but do not contain it.
package square

import (
	"embed"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var spec = declared.Spec{
	Name: "square", Title: "Square",
	Schemes: []*signature.Scheme{{
		Name: "square-hmacsha256", Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Square-HmacSha256-Signature")}},
		Message:   signature.MustTemplate("{url}{body}"),
	}},
	Headers: []string{"Square-Environment", "Square-Retry-Number", "Square-Retry-Reason",
		"Square-Initial-Delivery-Timestamp"},
	Events: declared.Events{
		Key:        declared.Templates("{json:event_id}"),
		Type:       declared.Templates("{json:type}"),
		Account:    declared.Templates("{json:merchant_id}"),
		OccurredAt: declared.TimeAt("json:created_at", declared.RFC3339),
	},
	Objects: objects(),
	Samples: []provider.Sample{
		declared.LoadSample(files, "payment.created", "samples/payment_created.json"),
		declared.LoadSample(files, "payment.updated", "samples/payment_updated.json"),
		declared.LoadSample(files, "order.updated", "samples/order_updated.json"),
		declared.LoadSample(files, "invoice.published", "samples/invoice_published.json"),
		declared.LoadSample(files, "invoice.payment_made", "samples/invoice_payment_made.json"),
		declared.LoadSample(files, "booking.created", "samples/booking_created.json"),
		declared.LoadSample(files, "customer.created", "samples/customer_created.json"),
		declared.LoadSample(files, "customer.deleted", "samples/customer_deleted.json"),
	},
	Variants: declared.Variants{
		IDs:   []string{"event_id"},
		Times: []declared.Time{*declared.TimeAt("json:created_at", declared.RFC3339)},
		Versions: []string{"data.object.invoice.version", "data.object.booking.version", "data.object.customer.version",
			"data.object.order_updated.version"},
		Objects: []string{"data.id", "data.object.booking.id"},
		Counter: "data.object.payment.amount_money.amount",
	},
	Docs: provider.Docs{
		Setup: "In the Developer Console, open the application, then *Webhooks*, *Subscriptions*, and add a " +
			"subscription with the ingest URL. The secret is its *signature key*. Set exactly the same URL under " +
			"`url`, because Square signs it together with the body. Sellers are distinguished by `merchant_id`. " +
			"List those that you accept under `accounts`, or leave `accounts` out to accept all.",
		Objects: objectsText(),
		Links: []string{"https://developer.squareup.com/docs/webhooks/overview",
			"https://developer.squareup.com/docs/webhooks/step3validate",
			"https://developer.squareup.com/docs/webhooks/v2webhook-events-tech-ref"},
		Unconfirmed: []string{
			"Retries, 11 in a day, send the same bytes with the same signature. No time is signed, so Postern " +
				"cannot distinguish a retry from a captured delivery that is sent again. Both are the same event, " +
				"because its id is signed.",
			"`version` of a subscription, booking, dispute, vendor, shift and bank account grows with every " +
				"change. Square documents this for the other types.",
		},
	},
}

// mirrored are the object types whose events contain the whole object.
var mirrored = []struct {
	kind   string
	events []string
	// at is the path of the object below data.object.
	at string
	// version means that the object has an integer version. mayNotAdvance means that Square does
	// not document that it grows with every change.
	version, mayNotAdvance bool
	// deletes are the event types that delete the object. Square does not document that ids are
	// never reused, so no delete is final. The deletes of objects with versions contain the last
	// version, or none, so their order is unknown and the object needs a refetch.
	deletes []string
}{
	{kind: "payment", events: []string{"payment.created", "payment.updated"}, at: "payment"},
	{kind: "refund", events: []string{"refund.created", "refund.updated"}, at: "refund"},
	{kind: "invoice", events: []string{"invoice.*"}, at: "invoice", version: true,
		deletes: []string{"invoice.deleted"}},
	{kind: "customer", events: []string{"customer.created", "customer.updated", "customer.deleted"}, at: "customer",
		version: true, deletes: []string{"customer.deleted"}},
	{kind: "booking", events: []string{"booking.created", "booking.updated"}, at: "booking", version: true,
		mayNotAdvance: true},
	{kind: "subscription", events: []string{"subscription.created", "subscription.updated"}, at: "subscription",
		version: true, mayNotAdvance: true},
	{kind: "payout", events: []string{"payout.*"}, at: "payout", version: true},
	{kind: "card", events: []string{"card.*"}, at: "card", version: true},
	{kind: "bank_account", events: []string{"bank_account.*"}, at: "bank_account", version: true, mayNotAdvance: true},
	{kind: "dispute", events: []string{"dispute.*"}, at: "dispute", version: true, mayNotAdvance: true},
	{kind: "vendor", events: []string{"vendor.*"}, at: "vendor", version: true, mayNotAdvance: true},
	{kind: "shift", events: []string{"labor.shift.*"}, at: "shift", version: true, mayNotAdvance: true,
		deletes: []string{"labor.shift.deleted"}},
	{kind: "timecard", events: []string{"labor.timecard.*"}, at: "timecard", version: true,
		deletes: []string{"labor.timecard.deleted"}},
	{kind: "loyalty_account", events: []string{"loyalty.account.*"}, at: "loyalty_account",
		deletes: []string{"loyalty.account.deleted"}},
	{kind: "loyalty_event", events: []string{"loyalty.event.*"}, at: "loyalty_event"},
	{kind: "loyalty_program", events: []string{"loyalty.program.*"}, at: "loyalty_program"},
	{kind: "loyalty_promotion", events: []string{"loyalty.promotion.*"}, at: "loyalty_promotion"},
	{kind: "gift_card_activity", events: []string{"gift_card.activity.*"}, at: "gift_card_activity"},
	{kind: "gift_card", events: []string{"gift_card.*"}, at: "gift_card"},
	{kind: "team_member", events: []string{"team_member.created", "team_member.updated"}, at: "team_member"},
	{kind: "terminal_checkout", events: []string{"terminal.checkout.*"}, at: "checkout"},
	{kind: "terminal_refund", events: []string{"terminal.refund.*"}, at: "refund"},
	{kind: "terminal_action", events: []string{"terminal.action.*"}, at: "action"},
}

func objects() []declared.Object {
	id := declared.Templates("{json:data.id}")
	out := []declared.Object{
		{Events: []string{"*.custom_attribute*"}, Ignored: "custom attributes are not mirrored"},
		{Events: []string{"dispute.evidence.added", "dispute.evidence.removed", "dispute.state.changed"},
			Ignored: "Square sends the same change as another event, of the type that replaced this one"},
		{Events: []string{"catalog.version.updated"}, Ignored: "the event says that the catalog changed, but not " +
			"which part of it"},
		{Events: []string{"inventory.count.updated"}, Ignored: "the event contains counts of items at places, and is " +
			"about no single object"},
		{Events: []string{"order.created", "order.updated", "order.fulfillment.updated"},
			Type: declared.Templates("order"), ID: id,
			Partial: "the event contains the order's id and version, but not the order"},
		{Events: []string{"location.created", "location.updated"}, Type: declared.Templates("location"), ID: id},
	}
	for _, m := range mirrored {
		o := declared.Object{Events: m.events, Type: declared.Templates(m.kind), ID: id, State: "data.object." + m.at,
			Deletes: m.deletes}
		if m.kind == "booking" || m.kind == "vendor" { // data.id differs for each event
			o.ID = declared.Templates("{json:data.object." + m.at + ".id}")
		}
		if m.version {
			if len(m.deletes) > 0 {
				out = append(out, declared.Object{Events: m.deletes, Type: o.Type, ID: o.ID,
					Partial: "the delete contains the last version, or none, so its order is unknown"})
				o.Deletes = nil
			}
			o.Version = &declared.Version{From: signature.MustRef("json:data.object." + m.at + ".version"),
				Unit: declared.Integer, MayNotAdvance: m.mayNotAdvance}
		}
		out = append(out, o)
	}
	return append(out, declared.Object{Ignored: "events of this type are about no object that is mirrored"})
}

// objectsText describes the table in a few lines.
func objectsText() string {
	var versioned, timed, deletes []string
	for _, m := range mirrored {
		deletes = append(deletes, m.deletes...)
		if m.version {
			versioned = append(versioned, m.kind)
		} else {
			timed = append(timed, m.kind)
		}
	}
	list := func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }
	return "- " + list(versioned) + ": the whole object, ordered by its own integer `version`\n" +
		"- " + list(timed) + ": the whole object, ordered by the event's time, `created_at`\n" +
		"- " + list(deletes) + ": the object is deleted. If it is ordered by its own version, it needs a refetch, " +
		"because the delete has no version of its own.\n" +
		"- `order`, `location`: the object needs a refetch, because the event has its id, but not the object\n" +
		"- all other events, including custom attributes, the catalog's version and inventory counts: ignored"
}
