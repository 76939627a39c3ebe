// Package square reads Square's webhooks. The signature covers the address that Square was given and the body, and no time; many
// objects carry an integer version, which orders them; and an order's events name the order without carrying it.
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
	Headers: []string{"Square-Environment", "Square-Retry-Number", "Square-Retry-Reason", "Square-Initial-Delivery-Timestamp"},
	Events: declared.Events{
		Key:      declared.Templates("{json:event_id}"),
		Type:     declared.Templates("{json:type}"),
		Account:  declared.Templates("{json:merchant_id}"),
		Occurred: declared.At("json:created_at", declared.RFC3339),
	},
	Objects: objects(),
	Samples: []provider.Sample{
		declared.Sample(files, "payment.created", "samples/payment_created.json"),
		declared.Sample(files, "payment.updated", "samples/payment_updated.json"),
		declared.Sample(files, "order.updated", "samples/order_updated.json"),
		declared.Sample(files, "invoice.published", "samples/invoice_published.json"),
		declared.Sample(files, "invoice.payment_made", "samples/invoice_payment_made.json"),
		declared.Sample(files, "booking.created", "samples/booking_created.json"),
		declared.Sample(files, "customer.created", "samples/customer_created.json"),
		declared.Sample(files, "customer.deleted", "samples/customer_deleted.json"),
	},
	Vary: declared.Vary{
		IDs:   []string{"event_id"},
		Times: []declared.Time{*declared.At("json:created_at", declared.RFC3339)},
		Versions: []string{"data.object.invoice.version", "data.object.booking.version", "data.object.customer.version",
			"data.object.order_updated.version"},
		Objects: []string{"data.id", "data.object.booking.id"},
		Counter: "data.object.payment.amount_money.amount",
	},
	Docs: provider.Docs{
		Setup: "In the Developer Console open the application, *Webhooks*, *Subscriptions*, and add one with the ingest URL; the secret is its " +
			"*signature key*. Name exactly the same URL under `url`: it is signed together with the body. Sellers are told apart by `merchant_id`; " +
			"list those you take under `accounts`, or leave it out for all.",
		Objects: objectsText(),
		Links: []string{"https://developer.squareup.com/docs/webhooks/overview", "https://developer.squareup.com/docs/webhooks/step3validate",
			"https://developer.squareup.com/docs/webhooks/v2webhook-events-tech-ref"},
		Unsure: []string{
			"That retries, 11 over a day, send the same bytes under the same signature. No time is signed, so nobody can tell a retry from a captured " +
				"delivery sent again; both are the same event, since its id is signed.",
			"That `version` of a subscription, booking, dispute, vendor, shift and bank account grows with every change. It is documented for the others.",
		},
	},
}

// mirrored are the objects whose events carry them whole.
var mirrored = []struct {
	kind   string
	events []string
	// at is where the object stands below data.object.
	at string
	// version: the object carries an integer version; still: it is not documented to grow with every change.
	version, still bool
	// deletes: types after which the object is gone. No id is documented never to be given again, so none is final; and those of
	// versioned objects carry the last version, or none, so that nothing gives them a place, and a look is owed.
	deletes []string
}{
	{kind: "payment", events: []string{"payment.created", "payment.updated"}, at: "payment"},
	{kind: "refund", events: []string{"refund.created", "refund.updated"}, at: "refund"},
	{kind: "invoice", events: []string{"invoice.*"}, at: "invoice", version: true, deletes: []string{"invoice.deleted"}},
	{kind: "customer", events: []string{"customer.created", "customer.updated", "customer.deleted"}, at: "customer", version: true,
		deletes: []string{"customer.deleted"}},
	{kind: "booking", events: []string{"booking.created", "booking.updated"}, at: "booking", version: true, still: true},
	{kind: "subscription", events: []string{"subscription.created", "subscription.updated"}, at: "subscription", version: true, still: true},
	{kind: "payout", events: []string{"payout.*"}, at: "payout", version: true},
	{kind: "card", events: []string{"card.*"}, at: "card", version: true},
	{kind: "bank_account", events: []string{"bank_account.*"}, at: "bank_account", version: true, still: true},
	{kind: "dispute", events: []string{"dispute.*"}, at: "dispute", version: true, still: true},
	{kind: "vendor", events: []string{"vendor.*"}, at: "vendor", version: true, still: true},
	{kind: "shift", events: []string{"labor.shift.*"}, at: "shift", version: true, still: true, deletes: []string{"labor.shift.deleted"}},
	{kind: "timecard", events: []string{"labor.timecard.*"}, at: "timecard", version: true, deletes: []string{"labor.timecard.deleted"}},
	{kind: "loyalty_account", events: []string{"loyalty.account.*"}, at: "loyalty_account", deletes: []string{"loyalty.account.deleted"}},
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
		{Events: []string{"catalog.version.updated"}, Ignored: "the event tells that the catalog changed, not what of it"},
		{Events: []string{"inventory.count.updated"}, Ignored: "the event tells counts of items at places, and names no one object"},
		{Events: []string{"order.created", "order.updated", "order.fulfillment.updated"}, Type: declared.Templates("order"), ID: id,
			Partial: "the event names the order and its version, and does not carry it"},
		{Events: []string{"location.created", "location.updated"}, Type: declared.Templates("location"), ID: id},
	}
	for _, m := range mirrored {
		o := declared.Object{Events: m.events, Type: declared.Templates(m.kind), ID: id, State: "data.object." + m.at, Deletes: m.deletes}
		if m.kind == "booking" || m.kind == "vendor" { // data.id is another with each event
			o.ID = declared.Templates("{json:data.object." + m.at + ".id}")
		}
		if m.version {
			if len(m.deletes) > 0 {
				out = append(out, declared.Object{Events: m.deletes, Type: o.Type, ID: o.ID,
					Partial: "the delete carries the last version, or none, so nothing tells what it comes after"})
				o.Deletes = nil
			}
			o.Version = &declared.Version{From: signature.MustRef("json:data.object." + m.at + ".version"), Unit: declared.Integer, Still: m.still}
		}
		out = append(out, o)
	}
	return append(out, declared.Object{Ignored: "events of this type concern no object that is mirrored"})
}

// objectsText says in a few lines what the table has in many.
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
	return "- " + list(versioned) + ": whole, ordered by their own integer `version`\n" +
		"- " + list(timed) + ": whole, ordered by the event's time, `created_at`\n" +
		"- " + list(deletes) + ": the object is gone; where it is ordered by its own version a look is owed, since its delete carries none of its own\n" +
		"- `order`, `location`: the event names the object and does not carry it, so a look is owed\n" +
		"- all other events, custom attributes, the catalog's version and counts of the inventory among them: none"
}
