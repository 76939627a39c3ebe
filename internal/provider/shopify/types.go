package shopify

// on makes the topics of one subject.
func on(subject string, verbs ...string) []string {
	out := make([]string, len(verbs))
	for i, v := range verbs {
		out[i] = subject + "/" + v
	}
	return out
}

// because gives several topics one reason.
func because(reason string, topics ...string) map[string]string {
	out := make(map[string]string, len(topics))
	for _, t := range topics {
		out[t] = reason
	}
	return out
}

const (
	noState = "the body tells that the object changed and not what it is now"
	noClock = "the body carries no time of change, so it has no place in the order"
)

// kinds is what Shopify's topics mean for the version rule (https://shopify.dev/docs/api/webhooks). Bodies are rendered
// when they are sent, not when the change happened, so topics of one object are told apart by updated_at alone: no
// topic opens an object, and no status orders two bodies. What merely sounds like a delete (orders/cancelled,
// customers/disable, locations/deactivate, customers/redact) is none.
var kinds = []kind{
	// An edited order is a difference. What moves an order's updated_at is not documented for all that is embedded in it.
	{name: "order", gid: "Order", still: true,
		always:    []string{"line_items", "note_attributes", "taxes_included"},
		whole:     on("orders", "create", "updated", "paid", "cancelled", "fulfilled", "partially_fulfilled"),
		deletes:   on("orders", "delete"),
		why:       because("an edit is told as a difference: what was added and what was taken out", "orders/edited"),
		elsewhere: []string{"order_edit.order_id"}},
	{name: "draft_order", gid: "DraftOrder", always: []string{"line_items", "note_attributes", "tax_exempt"},
		whole: on("draft_orders", "create", "update"), deletes: on("draft_orders", "delete")},
	// Whether each change of stock moves a product's updated_at is not documented.
	{name: "product", gid: "Product", still: true, always: []string{"handle", "options", "variants"},
		whole: on("products", "create", "update"), deletes: on("products", "delete")},
	// A deleted variant shows only as its absence in products/update. Its topics tell of stock, as above.
	{name: "variant", gid: "ProductVariant", still: true, always: []string{"inventory_policy", "price", "taxable"},
		whole: on("variants", "in_stock", "out_of_stock")},
	{name: "collection", gid: "Collection", still: true, always: []string{"handle", "sort_order", "title"},
		whole:   on("collections", "create", "update"),
		deletes: on("collections", "delete"), leftovers: []string{"published_scope"}},
	// A merge ends one customer and leaves another; it is told of the one that ends, the other gets an update of its own.
	{name: "customer", gid: "Customer", always: []string{"created_at", "state", "tax_exempt"},
		whole:   on("customers", "create", "update", "enable", "disable"),
		deletes: on("customers", "delete"),
		why: because(noState, "customers/merge", "customers/purchasing_summary", "customers_marketing_consent/update",
			"customers_email_marketing_consent/update", "customer.tags_added", "customer.tags_removed",
			"customer.joined_segment", "customer.left_segment"),
		elsewhere: []string{"admin_graphql_api_customer_deleted_id", "customer_id", "customerId"}},
	{name: "inventory_item", gid: "InventoryItem", always: []string{"created_at", "requires_shipping", "tracked"},
		whole: on("inventory_items", "create", "update"), deletes: on("inventory_items", "delete")},
	// A level is where an item is kept. To disconnect and connect it again gives the same key.
	{name: "inventory_level", gid: "InventoryLevel", always: []string{"available"},
		whole:   on("inventory_levels", "connect", "update"),
		deletes: on("inventory_levels", "disconnect"), returns: true, ids: []string{"inventory_item_id", "location_id"}},
	{name: "fulfillment", gid: "Fulfillment", always: []string{"created_at", "line_items", "order_id"},
		whole: on("fulfillments", "create", "update")},
	// The only topic of a refund, sent when it is made; its time of creation is the time of the event.
	{name: "refund", gid: "Refund", always: []string{"order_id", "refund_line_items", "transactions"},
		whole: on("refunds", "create"), created: "created_at"},
	{name: "order_transaction", gid: "OrderTransaction",
		why: because("the topic comes at creation and again when the status changes, and carries no time of change", "order_transactions/create")},
	// A cart is named by its token and has no API to look it up.
	{name: "cart", named: true, always: []string{"created_at", "line_items", "note"},
		whole: on("carts", "create", "update"), unit: millisecond},
	{name: "checkout", always: []string{"created_at", "currency", "line_items"},
		whole: on("checkouts", "create", "update"), deletes: on("checkouts", "delete"), leftovers: []string{"*"}, lacks: "token"},
	{name: "shop", gid: "Shop", always: []string{"created_at", "currency", "myshopify_domain"}, whole: on("shop", "update")},
	{name: "theme", still: true, always: []string{"created_at", "name", "role"},
		whole: on("themes", "create", "publish", "update"), deletes: on("themes", "delete")},
	{name: "location", gid: "Location", always: []string{"active", "created_at", "name"},
		whole: on("locations", "create", "update", "activate", "deactivate"), deletes: on("locations", "delete")},
	{name: "bulk_operation", gid: "BulkOperation", why: because(noState, "bulk_operations/finish")},
	{name: "subscription_contract", gid: "SubscriptionContract",
		why: because("the body is the contract's head without its lines, and carries no time of change",
			on("subscription_contracts", "create", "update", "activate", "pause", "cancel", "fail", "expire")...)},
	{name: "return", gid: "Return",
		why: because(noClock, on("returns", "request", "approve", "decline", "cancel", "close", "reopen", "update", "process")...)},

	// Their deletes send the whole object, so a body does not tell a delete from an update, and the topic is not signed.
	{name: "company", gid: "Company", always: []string{"created_at"},
		whole: on("companies", "create", "update"), why: because(wholeDelete, "companies/delete")},
	{name: "company_contact", gid: "CompanyContact", always: []string{"created_at"},
		whole: on("company_contacts", "create", "update"), why: because(wholeDelete, "company_contacts/delete")},
	{name: "company_location", gid: "CompanyLocation", always: []string{"created_at"},
		whole: on("company_locations", "create", "update"), why: because(wholeDelete, "company_locations/delete")},
	{name: "domain", always: []string{"host"}, whole: on("domains", "create", "update"), why: because(wholeDelete, "domains/destroy")},

	// What concerns no object.
	{none: true, why: map[string]string{
		"app/uninstalled":        "the app was uninstalled; the body is the shop, which lives on",
		"app/scopes_update":      "the app's scopes changed; that is no object",
		"customers/data_request": "a customer asks for the data kept about them; a person must answer within 30 days",
		"customers/redact":       "a customer's data must be erased within 30 days; the customer was not deleted by this",
		"shop/redact":            "the shop's data must be erased within 30 days; the shop was not deleted by this",
	}},
}

const wholeDelete = "the delete's body is the whole object, like an update's, and the topic is not signed, so the delete is not believed without a look"
