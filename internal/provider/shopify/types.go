package shopify

// topicsOf returns the topics of one subject.
func topicsOf(subject string, verbs ...string) []string {
	out := make([]string, len(verbs))
	for i, v := range verbs {
		out[i] = subject + "/" + v
	}
	return out
}

// withReason gives several topics one reason.
func withReason(reason string, topics ...string) map[string]string {
	out := make(map[string]string, len(topics))
	for _, t := range topics {
		out[t] = reason
	}
	return out
}

const (
	noState = "the body says that the object changed, but not its new state"
	noClock = "the body has no time of change, so its order is unknown"
)

// objectRules say what Shopify's topics mean for the version rule
// (https://shopify.dev/docs/api/webhooks). Bodies are rendered when they are sent, not when the
// change happened. So topics of one object are ordered by updated_at alone: no topic opens an
// object, and no status orders two bodies. These topics are not deletes: orders/cancelled,
// customers/disable, locations/deactivate, customers/redact.
var objectRules = []objectRule{
	// The body of orders/edited contains only a difference. Shopify does not document which changes
	// inside an order advance its updated_at.
	{name: "order", gid: "Order", mayNotAdvance: true,
		requiredFields: []string{"line_items", "note_attributes", "taxes_included"},
		wholeTopics: topicsOf("orders", "create", "updated", "paid", "cancelled", "fulfilled",
			"partially_fulfilled"),
		deletes: topicsOf("orders", "delete"),
		partialReasons: withReason("an edit contains only the difference: the added and the removed items",
			"orders/edited"),
		otherIDPaths: []string{"order_edit.order_id"}},
	{name: "draft_order", gid: "DraftOrder", requiredFields: []string{"line_items", "note_attributes", "tax_exempt"},
		wholeTopics: topicsOf("draft_orders", "create", "update"), deletes: topicsOf("draft_orders", "delete")},
	// Shopify does not document whether each change of stock advances a product's updated_at.
	{name: "product", gid: "Product", mayNotAdvance: true, requiredFields: []string{"handle", "options", "variants"},
		wholeTopics: topicsOf("products", "create", "update"), deletes: topicsOf("products", "delete")},
	// A deleted variant is only visible as its absence in products/update. Its topics report stock,
	// as above.
	{name: "variant", gid: "ProductVariant", mayNotAdvance: true, requiredFields: []string{"inventory_policy", "price",
		"taxable"},
		wholeTopics: topicsOf("variants", "in_stock", "out_of_stock")},
	{name: "collection", gid: "Collection", mayNotAdvance: true, requiredFields: []string{"handle", "sort_order",
		"title"},
		wholeTopics: topicsOf("collections", "create", "update"),
		deletes:     topicsOf("collections", "delete"), leftovers: []string{"published_scope"}},
	// A merge deletes one customer and keeps another. Its topic is about the deleted one; the other
	// gets an update of its own.
	{name: "customer", gid: "Customer", requiredFields: []string{"created_at", "state", "tax_exempt"},
		wholeTopics: topicsOf("customers", "create", "update", "enable", "disable"),
		deletes:     topicsOf("customers", "delete"),
		partialReasons: withReason(noState, "customers/merge", "customers/purchasing_summary",
			"customers_marketing_consent/update",
			"customers_email_marketing_consent/update", "customer.tags_added", "customer.tags_removed",
			"customer.joined_segment", "customer.left_segment"),
		otherIDPaths: []string{"admin_graphql_api_customer_deleted_id", "customer_id", "customerId"}},
	{name: "inventory_item", gid: "InventoryItem", requiredFields: []string{"created_at", "requires_shipping",
		"tracked"},
		wholeTopics: topicsOf("inventory_items", "create", "update"), deletes: topicsOf("inventory_items", "delete")},
	// A level is an item at a location. An item that is disconnected and connected again has the
	// same key.
	{name: "inventory_level", gid: "InventoryLevel", requiredFields: []string{"available"},
		wholeTopics: topicsOf("inventory_levels", "connect", "update"),
		deletes:     topicsOf("inventory_levels", "disconnect"), canReturn: true,
		ids: []string{"inventory_item_id", "location_id"}},
	{name: "fulfillment", gid: "Fulfillment", requiredFields: []string{"created_at", "line_items", "order_id"},
		wholeTopics: topicsOf("fulfillments", "create", "update")},
	// The only topic of a refund, sent when it is created; its time of creation is the time of the
	// event.
	{name: "refund", gid: "Refund", requiredFields: []string{"order_id", "refund_line_items", "transactions"},
		wholeTopics: topicsOf("refunds", "create"), created: "created_at"},
	{name: "order_transaction", gid: "OrderTransaction",
		partialReasons: withReason("the topic is sent at creation and again when the status changes, and has no time "+
			"of change",
			"order_transactions/create")},
	// A cart is named by its token, and no API reads it.
	{name: "cart", textIDs: true, requiredFields: []string{"created_at", "line_items", "note"},
		wholeTopics: topicsOf("carts", "create", "update"), unit: millisecond},
	{name: "checkout", requiredFields: []string{"created_at", "currency", "line_items"},
		wholeTopics: topicsOf("checkouts", "create", "update"), deletes: topicsOf("checkouts", "delete"),
		leftovers:      []string{"*"},
		absentInDelete: "token"},
	{name: "shop", gid: "Shop", requiredFields: []string{"created_at", "currency", "myshopify_domain"},
		wholeTopics: topicsOf("shop", "update")},
	{name: "theme", mayNotAdvance: true, requiredFields: []string{"created_at", "name", "role"},
		wholeTopics: topicsOf("themes", "create", "publish", "update"), deletes: topicsOf("themes", "delete")},
	{name: "location", gid: "Location", requiredFields: []string{"active", "created_at", "name"},
		wholeTopics: topicsOf("locations", "create", "update", "activate", "deactivate"),
		deletes:     topicsOf("locations", "delete")},
	{name: "bulk_operation", gid: "BulkOperation", partialReasons: withReason(noState, "bulk_operations/finish")},
	{name: "subscription_contract", gid: "SubscriptionContract",
		partialReasons: withReason("the body is the contract's head without its lines, and has no time of change",
			topicsOf("subscription_contracts", "create", "update", "activate", "pause", "cancel", "fail",
				"expire")...)},
	{name: "return", gid: "Return",
		partialReasons: withReason(noClock, topicsOf("returns", "request", "approve", "decline", "cancel", "close",
			"reopen", "update", "process")...)},

	// Their deletes contain the whole object, so the body of a delete looks like that of an update,
	// and the topic is not signed.
	{name: "company", gid: "Company", requiredFields: []string{"created_at"},
		wholeTopics: topicsOf("companies", "create", "update"), partialReasons: withReason(wholeDelete,
			"companies/delete")},
	{name: "company_contact", gid: "CompanyContact", requiredFields: []string{"created_at"},
		wholeTopics: topicsOf("company_contacts", "create", "update"), partialReasons: withReason(wholeDelete,
			"company_contacts/delete")},
	{name: "company_location", gid: "CompanyLocation", requiredFields: []string{"created_at"},
		wholeTopics: topicsOf("company_locations", "create", "update"), partialReasons: withReason(wholeDelete,
			"company_locations/delete")},
	{name: "domain", requiredFields: []string{"host"}, wholeTopics: topicsOf("domains", "create", "update"),
		partialReasons: withReason(wholeDelete, "domains/destroy")},

	// Topics that are about no object.
	{noObject: true, partialReasons: map[string]string{
		"app/uninstalled":   "the app was uninstalled; the body is the shop, which continues to exist",
		"app/scopes_update": "the app's scopes changed; this is not an object",
		"customers/data_request": "a customer requests the data stored about them; an operator must respond within " +
			"30 days",
		"customers/redact": "a customer's data must be erased within 30 days; the customer was not deleted by this",
		"shop/redact":      "the shop's data must be erased within 30 days; the shop was not deleted by this",
	}},
}

const wholeDelete = "the delete's body is the whole object, like an update's, and the topic is not signed, so the " +
	"delete is not trusted without a refetch"
