package shopify_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
)

func observed(topic, body string) string {
	return providertest.Summary(shopify.Shopify{}.Observe(&provider.Source{},
		&provider.StoredEvent{Type: topic, Body: []byte(body)}))
}

const updated = `"updated_at": "2026-01-01T01:00:00+01:00"`

// The further fields that a body needs to be a whole object.
const (
	wholeOrder      = updated + `, "line_items": [], "note_attributes": [], "taxes_included": true`
	wholeDraft      = updated + `, "line_items": [], "note_attributes": [], "tax_exempt": false`
	wholeProduct    = updated + `, "handle": "kettle", "options": []`
	wholeVariant    = updated + `, "inventory_policy": "deny", "price": "3.00", "taxable": true`
	wholeCollection = updated + `, "handle": "tea", "sort_order": "manual", "title": "Tea"`
	wholeCustomer   = updated + `, "created_at": null, "state": "enabled", "tax_exempt": false`
	wholeItem       = updated + `, "created_at": null, "requires_shipping": true, "tracked": null`
	wholeCart       = `, "created_at": null, "line_items": [], "note": null`
	wholeCheckout   = updated + `, "created_at": null, "currency": "EUR", "line_items": []`
	wholeShop       = `, "created_at": null, "currency": "EUR", "myshopify_domain": "a.myshopify.com"`
	wholeTheme      = updated + `, "created_at": null, "name": "Dawn", "role": "main"`
	wholeLocation   = updated + `, "active": true, "created_at": null, "name": "Shed"`
	wholeCompany    = updated + `, "created_at": null`
)

// Each topic of the table, with the smallest body that it needs.
func TestObserve_topics_giveObservation(t *testing.T) {
	t.Parallel()
	const at = ", at 1767225600000000/1000000, rank 1"
	const deleted = ", rank 1, deleted, final"
	tests := []struct{ topics, body, want string }{
		{"orders/create orders/updated orders/paid orders/cancelled orders/fulfilled orders/partially_fulfilled",
			`{"id": 820982911946154508, ` + wholeOrder +
				`, "admin_graphql_api_id": "gid://shopify/Order/820982911946154508"}`, "order 820982911946154508" + at +
				", own, may not advance"},
		{"orders/delete", `{"id": 820982911946154508}`, "order 820982911946154508" + deleted},
		{"orders/edited", `{"order_edit": {"id": 7, "order_id": 820982911946154508}}`,
			"order 820982911946154508, partial: an edit contains only the difference: the added and the removed items"},
		{"draft_orders/create draft_orders/update", `{"id": 7, ` + wholeDraft + `}`, "draft_order 7" + at + ", own"},
		{"draft_orders/delete", `{"id": 7}`, "draft_order 7" + deleted},
		{"products/create products/update", `{"id": 7, ` + wholeProduct + `, "variants": []}`, "product 7" + at +
			", own, may not advance"},
		{"products/update", `{"id": 7, ` + wholeProduct + `, "variants": [{}], "variant_gids": [{}]}`, "product 7" +
			at + ", own, may not advance"},
		{"products/update", `{"id": 7, ` + wholeProduct + `, "variants": [{}], "variant_gids": [{}, {}]}`,
			"product 7, partial: the body lists more variants than it contains; Shopify cuts long lists"},
		{"products/delete", `{"id": 7}`, "product 7" + deleted},
		{"variants/in_stock variants/out_of_stock", `{"id": 7, ` + wholeVariant + `}`, "variant 7" + at +
			", own, may not advance"},
		{"collections/create collections/update", `{"id": 7, ` + wholeCollection + `}`, "collection 7" + at +
			", own, may not advance"},
		{"collections/delete", `{"id": 7, "published_scope": "web", "admin_graphql_api_id": "gid://shopify/Collection/7"}`, "collection 7" + deleted},
		{"customers/create customers/update customers/enable customers/disable", `{"id": 7, ` + wholeCustomer + `}`,
			"customer 7" + at + ", own"},
		{"customers/delete", `{"id": 7, "tax_exemptions": [], "phone": null, "admin_graphql_api_id": "gid://shopify/Customer/7"}`, "customer 7" + deleted},
		{"customers/merge", `{"admin_graphql_api_customer_kept_id": "gid://shopify/Customer/1", "admin_graphql_api_customer_deleted_id": "gid://shopify/Customer/7"}`,
			"customer 7, partial: the body says that the object changed, but not its new state"},
		{"customers/purchasing_summary customers_marketing_consent/update customers_email_marketing_consent/update",
			`{"customer_id": 7}`, "customer 7, partial: the body says that the object changed, but not its new state"},
		{"customer.tags_added customer.tags_removed customer.joined_segment customer.left_segment",
			`{"customerId": "gid://shopify/Customer/7"}`,
			"customer 7, partial: the body says that the object changed, but not its new state"},
		{"inventory_items/create inventory_items/update", `{"id": 7, ` + wholeItem + `}`, "inventory_item 7" + at +
			", own"},
		{"inventory_items/delete", `{"id": 7, "sku": null, "cost": null}`, "inventory_item 7" + deleted},
		{"inventory_levels/connect inventory_levels/update",
			`{"inventory_item_id": 7, "location_id": 8, "available": 3, ` + updated + `}`, "inventory_level 7:8" + at +
				", own"},
		{"inventory_levels/disconnect", `{"inventory_item_id": 7, "location_id": 8}`,
			"inventory_level 7:8, partial: the delete has no time, and the same object can return"},
		{"fulfillments/create fulfillments/update", `{"id": 7, "order_id": 8, "line_items": [], "created_at": null, ` +
			updated + `}`, "fulfillment 7" + at + ", own"},
		{"refunds/create", `{"id": 7, "order_id": 8, "refund_line_items": [], "transactions": [], ` +
			`"created_at": "2026-01-01T00:00:00Z"}`,
			"refund 7" + at},
		{"order_transactions/create", `{"id": 7, "created_at": "2026-01-01T00:00:00Z"}`,
			"order_transaction 7, partial: the topic is sent at creation and again when the status changes, and has " +
				"no time of change"},
		{"carts/create carts/update", `{"id": "hWN2c", "updated_at": "2026-01-01T00:00:00.125Z"` + wholeCart + `}`,
			"cart hWN2c, at 1767225600125000/1000, rank 1, own"},
		{"checkouts/create checkouts/update", `{"token": "t", "name": "#7", ` + wholeCheckout + `}`, "checkout 7" + at +
			", own"},
		{"checkouts/delete", `{"id": 7, "total_price": "3.00", "cart_token": "c"}`, "checkout 7" + deleted},
		{"shop/update", `{"id": 7, ` + updated + wholeShop + `}`, "shop 7" + at + ", own"},
		{"shop/update", `{"id": 7, "updated_at": null` + wholeShop + `}`,
			"shop 7, partial: the body's updated_at is not a time, so its order is unknown"},
		{"themes/create themes/publish themes/update", `{"id": 7, ` + wholeTheme + `}`, "theme 7" + at +
			", own, may not advance"},
		{"themes/delete", `{"id": 7}`, "theme 7" + deleted},
		{"locations/create locations/update locations/activate locations/deactivate", `{"id": 7, ` + wholeLocation +
			`}`, "location 7" + at + ", own"},
		{"locations/delete", `{"id": 7}`, "location 7" + deleted},
		{"bulk_operations/finish", `{"admin_graphql_api_id": "gid://shopify/BulkOperation/7", "status": "completed"}`,
			"bulk_operation 7, partial: the body says that the object changed, but not its new state"},
		{"subscription_contracts/create subscription_contracts/update subscription_contracts/activate " +
			"subscription_contracts/pause subscription_contracts/cancel subscription_contracts/fail " +
			"subscription_contracts/expire",
			`{"id": 7, "revision_id": "9"}`, "subscription_contract 7, partial: the body is the contract's head " +
				"without its lines, and has no time of change"},
		{"returns/request returns/approve returns/decline returns/cancel returns/close returns/reopen returns/update " +
			"returns/process",
			`{"admin_graphql_api_id": "gid://shopify/Return/7"}`, "return 7, partial: the body has no time of " +
				"change, so its order is unknown"},
		{"companies/create companies/update", `{"id": 7, ` + wholeCompany + `}`, "company 7" + at + ", own"},
		{"companies/delete", `{"id": 7, ` + updated + `}`, "company 7, partial: " + wholeDelete},
		{"company_contacts/create company_contacts/update", `{"id": 7, ` + wholeCompany + `}`, "company_contact 7" +
			at + ", own"},
		{"company_contacts/delete", `{"id": 7, ` + updated + `}`, "company_contact 7, partial: " + wholeDelete},
		{"company_locations/create company_locations/update", `{"id": 7, ` + wholeCompany + `}`, "company_location 7" +
			at + ", own"},
		{"company_locations/delete", `{"id": 7, ` + updated + `}`, "company_location 7, partial: " + wholeDelete},
		{"domains/create domains/update", `{"id": 7, "host": "a.example", ` + updated + `}`, "domain 7" + at + ", own"},
		{"domains/destroy", `{"id": 7, ` + updated + `}`, "domain 7, partial: " + wholeDelete},
		{"app/uninstalled", `{"id": 7}`, "ignored: the app was uninstalled; the body is the shop, which continues to " +
			"exist"},
		{"app/scopes_update", `{"id": 7}`, "ignored: the app's scopes changed; this is not an object"},
		{"customers/data_request", `{"shop_id": 7}`, "ignored: a customer requests the data stored about them; an " +
			"operator must respond within 30 days"},
		{"customers/redact", `{"shop_id": 7}`, "ignored: a customer's data must be erased within 30 days; the " +
			"customer was not deleted by this"},
		{"shop/redact", `{"shop_id": 7}`, "ignored: the shop's data must be erased within 30 days; the shop was not " +
			"deleted by this"},
		// Topics that are not in the table.
		{"tender_transactions/create", `{"id": 7}`, "tender_transaction 7, partial: the topic " +
			"tender_transactions/create is unknown, so its body may be part of an object"},
		{"deliveries/create", `{"admin_graphql_api_id": "gid://shopify/Delivery/7"}`, "delivery 7, partial: the " +
			"topic deliveries/create is unknown, so its body may be part of an object"},
		{"orders/risk_assessment_changed", `{"id": 9, "order_id": 7}`, "order 7, partial: the topic " +
			"orders/risk_assessment_changed is unknown, so its body may be part of an object"},
		{"fulfillment_orders/cancelled", `{"fulfillment_order": {"id": "gid://shopify/FulfillmentOrder/7"}}`,
			"fulfillment_order 7, partial: the topic fulfillment_orders/cancelled is unknown, so its body may be " +
				"part of an object"},
		{"segments/rebuild", `{}`, "ignored: the topic segments/rebuild is unknown, and no object of the name " +
			"segment is in its body"},
	}
	tested := map[string]bool{}
	for _, test := range tests {
		for topic := range strings.FieldsSeq(test.topics) {
			tested[topic] = true
			if got := observed(topic, test.body); got != test.want {
				t.Errorf("%s %s:\n got %s\nwant %s", topic, test.body, got, test.want)
			}
		}
	}
	for _, topic := range shopify.Topics() {
		if !tested[topic] {
			t.Errorf("no test for %s", topic)
		}
	}
}

const wholeDelete = "the delete's body is the whole object, like an update's, and the topic is not signed, so the " +
	"delete is not trusted without a refetch"

// The topic is unsigned: a captured body sent again under another topic must neither delete nor
// overwrite.
func TestObserve_bodyOfOtherTopic_isDead(t *testing.T) {
	t.Parallel()
	tests := []struct{ topic, body, want string }{
		{"orders/delete", `{"id": 7, ` + updated + `, "note": "alive"}`, "belongs to another topic"},
		{"orders/delete", `{"id": 7, ` + updated + `}`, `contains no "updated_at"`},
		{"products/delete", `{"id": 7, "title": "Kettle"}`, `contains no "title"`},
		{"customers/delete", `{"id": 7, "tax_exemptions": ["EU"]}`, `contains no "tax_exemptions"`},
		{"products/delete", `{"id": 7, "admin_graphql_api_id": "gid://shopify/Order/7"}`, "objects of type product"},
		{"checkouts/delete", `{"id": 7, "token": "t"}`, `contains no "token"`},
		{"checkouts/delete", `{"token": "t", "name": "#7", ` + updated + `}`, "not trusted"},
		{"inventory_levels/disconnect", `{"inventory_item_id": 7, "location_id": 8, "available": 2, ` + updated + `}`,
			"not trusted"},
		{"orders/updated", `{"id": 7, ` + updated + `, "admin_graphql_api_id": "gid://shopify/Customer/7"}`,
			"objects of type order"},
		{"carts/update", `{"id": 7, ` + updated + `, "admin_graphql_api_id": "gid://shopify/Customer/7"}`,
			"objects of type cart"},
		{"orders/updated", `{"id": "hWN2c", ` + updated + `}`, "must contain the id of its order"},
		{"orders/updated", `{"id": 7.5, ` + updated + `}`, "must contain the id of its order"},
		{"orders/updated", `{}`, "must contain the id of its order"},
		{"inventory_levels/update", `{"inventory_item_id": 7, ` + updated + `}`,
			"must contain the id of its inventory_level"},
		{"unknown", `{"id": 7}`, "has no readable topic"},
		{"", `{"id": 7}`, "has no readable topic"},
	}
	for _, test := range tests {
		if got := observed(test.topic, test.body); !strings.HasPrefix(got, "dead: ") ||
			!strings.Contains(got, test.want) {
			t.Errorf("%s %s: %s, want dead with %q", test.topic, test.body, got, test.want)
		}
	}
}

// The body of a delete under a topic of an update is no state.
func TestObserve_partOfObject_isPartial(t *testing.T) {
	t.Parallel()
	if got := observed("orders/updated", `{"id": 7}`); !strings.HasPrefix(got,
		"order 7, partial: the body has no updated_at") {
		t.Error(got)
	}
	rest := strings.TrimPrefix(wholeOrder, updated)
	for _, at := range []string{`null`, `"yesterday"`, `"0001-01-01T00:00:00Z"`, `1767225600`} {
		if got := observed("orders/updated", `{"id": 7, "updated_at": `+at+rest+`}`); !strings.HasPrefix(got,
			"order 7, partial: the body's updated_at is not a time") {
			t.Errorf("%s: %s", at, got)
		}
	}
}

// A subscription with include_fields sends part of an object, with updated_at as Shopify
// recommends. No such part is a state.
func TestObserve_wholeObjects_needRequiredFields(t *testing.T) {
	t.Parallel()
	const at = "2026-01-01T00:00:00Z"
	for topic, fields := range shopify.RequiredFields() {
		body := map[string]any{"id": 7, "inventory_item_id": 7, "location_id": 8, "updated_at": at, "created_at": at}
		for _, field := range fields {
			if _, set := body[field]; !set {
				body[field] = nil
			}
		}
		if got := observed(topic, encoded(t, body)); strings.Contains(got, "partial") ||
			strings.HasPrefix(got, "dead") {
			t.Errorf("%s with all fields: %s", topic, got)
		}
		if len(fields) < 2 {
			t.Errorf("%s: no field distinguishes the whole object from a part", topic)
		}
		for _, field := range fields {
			part := maps.Clone(body)
			delete(part, field)
			if got, want := observed(topic, encoded(t, part)), "partial: the body has no "+
				field; !strings.Contains(got,
				want) {
				t.Errorf("%s without %s: %s", topic, field, got)
			}
		}
	}
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	testkit.Must(t, err)
	return string(b)
}

func TestObserve_largeIDs_areExact(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		`9007199254740993`:                       "9007199254740993",
		`18446744073709551617`:                   "18446744073709551617",
		`8.20982911946154508e17`:                 "820982911946154508",
		`"gid://shopify/Order/9007199254740993"`: "9007199254740993",
	}
	for id, want := range tests {
		if got := observed("orders/delete", `{"id": `+id+`}`); !strings.HasPrefix(got, "order "+want+",") {
			t.Errorf("%s: %s", id, got)
		}
	}
}
