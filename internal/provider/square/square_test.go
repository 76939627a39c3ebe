package square_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/square"
)

const address = "https://hooks.example/webhooks/square"

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: square.New(),
		Source: &provider.Source{Name: "square", URL: address, Secrets: []provider.Secret{
			{Name: "new", Value: []byte("square_new")}, {Name: "old", Value: []byte("square_old")}}},
		Signature: "X-Square-Hmacsha256-Signature",
		NoKey: providertest.SignAgain(square.New(), providertest.Body(
			`{"merchant_id":"M","type":"payment.created","data":{"type":"payment","id":"p1"}}`)),
		Summaries: summaries(),
		// printf '%s' 'https://hooks.example/webhooks/square{"event_id":"e"}' |
		// openssl dgst -sha256 -hmac square_vector -binary | base64
		Vectors: []providertest.Vector{{Secret: "square_vector", Body: `{"event_id":"e"}`,
			Headers: map[string]string{
				"X-Square-Hmacsha256-Signature": "0Ux7qjZNkgSg2jlpngbaL5aGltMq2sAZ8E4KG6+tztk="}}},
	}
}

// summaries are bodies with their expected summaries.
func summaries() map[string]string {
	const head = `{"merchant_id":"M","event_id":"e","created_at":"2026-01-01T00:00:00.000Z",`
	out := map[string]string{}
	for body, want := range map[string]string{
		// The version orders the states, however late the event is.
		`"type":"payout.paid","data":{"id":"po_1","object":{"payout":{"id":"po_1","version":7}}}}`: "M payout po_1, " +
			"at 7/1, rank 1, own",
		// The data.id of a booking or a vendor differs for each event.
		`"type":"booking.updated",` +
			`"data":{"id":"b1:3","object":{"booking":{"id":"b1","version":3}}}}`: "M booking b1, " +
			"at 3/1, rank 1, own, may not advance",
		`"type":"vendor.updated","data":{"id":"8f0e","object":{"vendor":{"id":"V1","version":2}}}}`: "M vendor V1, " +
			"at 2/1, rank 1, own, may not advance",
		`"type":"invoice.deleted","data":{"type":"invoice","id":"inv:1","deleted":true}}`: "M invoice inv:1, at " +
			"1767225600000000/1000000, partial: the delete contains the last version, or none, so its order is unknown",
		`"type":"labor.timecard.deleted","data":{"type":"labor","id":"T1","deleted":true}}`: "M timecard T1, at " +
			"1767225600000000/1000000, partial: the delete contains the last version, or none, so its order is unknown",
		`"type":"loyalty.account.deleted",` +
			`"data":{"id":"L1","object":{"loyalty_account":{"id":"L1"}}}}`: "M loyalty_account L1, " +
			"at 1767225600000000/1000000, rank 1, deleted",
		`"type":"invoice.updated","data":{"id":"inv:1","object":{"invoice":{"id":"inv:1"}}}}`: "M invoice inv:1, " +
			"partial: the event has no version and no time, so its order is unknown",
		`"type":"order.created",` +
			`"data":{"id":"O1","object":{"order_created":{"order_id":"O1","version":1}}}}`: "M order O1, " +
			"at 1767225600000000/1000000, partial: the event contains the order's id and version, but not the order",
		`"type":"location.updated","data":{"type":"Location","id":"S8"}}`: "M location S8, " +
			"at 1767225600000000/1000000, partial: the event has no state of its object",
		// Two events of one change: only the documented one is used, because their bodies would
		// contradict each other.
		`"type":"dispute.evidence.added",` +
			`"data":{"id":"D1","object":{"dispute":{"dispute_id":"D1","version":2}}}}`: "ignored: " +
			"Square sends the same change as another event, of the type that replaced this one",
		`"type":"dispute.evidence.created",` +
			`"data":{"id":"D1","object":{"dispute":{"id":"D1","version":2}}}}`: "M dispute D1, " +
			"at 2/1, rank 1, own, may not advance",
		// Patterns must not match types with the same beginning.
		`"type":"customer.custom_attribute.owned.updated","data":{"id":"c","object":{}}}`: "ignored: " +
			"custom attributes are not mirrored",
		`"type":"gift_card.activity.created",` +
			`"data":{"id":"A","object":{"gift_card_activity":{"id":"A"}}}}`: "M gift_card_activity A, " +
			"at 1767225600000000/1000000, rank 1",
		`"type":"inventory.count.updated","data":{"id":"c","object":{"inventory_counts":[]}}}`: "ignored: " +
			"the event contains counts of items at places, and is about no single object",
		`"type":"webhooks.test_notification",` +
			`"data":{"type":"webhooks","id":"bc368e64-01aa-407e-b46e-3231809b1129"}}`: "ignored: " +
			"events of this type are about no object that is mirrored",
	} {
		out[head+body] = want
	}
	return out
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
