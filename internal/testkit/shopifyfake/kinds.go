package shopifyfake

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// kind is a type of object.
type kind struct {
	// name is the type in the mirror, plural is used by the REST API and the topics, gid by
	// GraphQL. A key needs the scope.
	name, plural, gid, scope string
	// create, change and remove are the webhook topics. remove is empty if a delete has no webhook.
	// neverDeleted objects cannot be deleted.
	create, change, remove string
	neverDeleted           bool
	// deleteBody has the fields of a delete webhook besides the id.
	deleteBody tree
	// fields are the fields of each body. A change changes some of them.
	fields func(n int) tree
}

type tree map[string]any

var kinds = []*kind{
	{name: "order", plural: "orders", gid: "Order", scope: "read_orders", create: "orders/create",
		change: "orders/updated", remove: "orders/delete",
		fields: func(n int) tree {
			return tree{"line_items": []any{}, "note_attributes": []any{}, "taxes_included": true,
				"note":     changeNote(n),
				"customer": nil}
		}},
	{name: "product", plural: "products", gid: "Product", scope: "read_products", create: "products/create",
		change: "products/update", remove: "products/delete",
		fields: func(n int) tree {
			return tree{"handle": "kettle", "options": []any{}, "variants": []any{}, "title": changeNote(n)}
		}},
	{name: "customer", plural: "customers", gid: "Customer", scope: "read_customers", create: "customers/create",
		change: "customers/update", remove: "customers/delete",
		deleteBody: tree{"tax_exemptions": []any{}},
		fields:     func(n int) tree { return tree{"state": "enabled", "tax_exempt": false, "note": changeNote(n)} }},
	{name: "draft_order", plural: "draft_orders", gid: "DraftOrder", scope: "read_draft_orders",
		create: "draft_orders/create", change: "draft_orders/update", remove: "draft_orders/delete",
		fields: func(n int) tree {
			return tree{"line_items": []any{}, "note_attributes": []any{}, "tax_exempt": false, "note": changeNote(n)}
		}},
	{name: "collection", plural: "collections", gid: "Collection", scope: "read_products", create: "collections/create",
		change: "collections/update", remove: "collections/delete",
		deleteBody: tree{"published_scope": nil},
		fields:     func(n int) tree { return tree{"handle": "tea", "sort_order": "manual", "title": changeNote(n)} }},
	{name: "theme", plural: "themes", gid: "OnlineStoreTheme", scope: "read_themes", create: "themes/create",
		change: "themes/update", remove: "themes/delete",
		fields: func(n int) tree { return tree{"role": "unpublished", "name": changeNote(n)} }},
	{name: "inventory_item", plural: "inventory_items", gid: "InventoryItem", scope: "read_inventory",
		create: "inventory_items/create", change: "inventory_items/update",
		remove: "inventory_items/delete",
		fields: func(n int) tree {
			return tree{"requires_shipping": true, "tracked": true, "cost": strconv.Itoa(n) + ".00"}
		}},
	{name: "inventory_level", plural: "inventory_levels", gid: "InventoryLevel", scope: "read_inventory",
		create: "inventory_levels/connect", change: "inventory_levels/update",
		remove: "inventory_levels/disconnect",
		fields: func(n int) tree { return tree{"available": n} }},
	{name: "location", plural: "locations", gid: "Location", scope: "read_locations", create: "locations/create",
		change: "locations/update", neverDeleted: true,
		fields: func(n int) tree { return tree{"active": n%3 != 2, "name": changeNote(n)} }},
	{name: "fulfillment", plural: "fulfillments", gid: "Fulfillment", scope: "read_fulfillments",
		create: "fulfillments/create", change: "fulfillments/update", neverDeleted: true,
		fields: func(n int) tree {
			return tree{"line_items": []any{}, "status": "success", "tracking_number": changeNote(n)}
		}},
}

// refund is a kind that steps do not create, but tests do.
var refund = &kind{name: "refund", plural: "refunds", gid: "Refund", scope: "read_orders", create: "refunds/create",
	neverDeleted: true,
	fields: func(n int) tree {
		return tree{"refund_line_items": []any{}, "transactions": []any{}, "note": changeNote(n)}
	}}

// giftCard is a kind that only a configuration describes. It has no webhook topic.
var giftCard = &kind{name: "gift_card", plural: "gift_cards", gid: "GiftCard", scope: "read_gift_cards",
	fields: func(n int) tree { return tree{"balance": strconv.Itoa(n) + ".00", "note": changeNote(n)} }}

// allKinds returns all kinds, including those that steps do not create.
func allKinds() []*kind { return append(kinds[:len(kinds):len(kinds)], refund, giftCard) }

func changeNote(n int) string { return "change " + strconv.Itoa(n) }

func kindOf(name string) *kind {
	for _, k := range allKinds() {
		if k.name == name {
			return k
		}
	}
	return nil
}

// object is one object with its history.
type object struct {
	kind *kind
	// id is the id in the mirror. number is the last part of the GraphQL id.
	id     string
	number int64
	// parent is the order of a fulfillment. item and location belong to an inventory level.
	parent, item, location *object
	changes                int
	// hidden: the API does not find the object.
	hidden  bool
	history []revision
}

// revision is the state of an object from a time on.
type revision struct {
	at int64
	// updated is the version of the object in whole seconds.
	updated int64
	// body is nil while the object is deleted.
	body []byte
}

// revisionAt returns the revision of the object at a time. It returns false if the object does not
// exist then.
func (o *object) revisionAt(at int64) (r revision, there bool) {
	for _, one := range o.history {
		if one.at > at {
			break
		}
		r, there = one, true
	}
	return r, there && r.body != nil
}

func (o *object) latestRevision() revision { return o.history[len(o.history)-1] }

func (o *object) isAlive() bool { return o.latestRevision().body != nil }

func (o *object) gid() string {
	gid := "gid://shopify/" + o.kind.gid + "/" + strconv.FormatInt(o.number, 10)
	if o.item != nil {
		gid += "?inventory_item_id=" + o.item.id
	}
	return gid
}

// render returns the body of the object in a webhook.
func (o *object) render(at int64) []byte {
	body := o.kind.fields(o.changes)
	body["updated_at"] = shopTime(at)
	body["admin_graphql_api_id"] = o.gid()
	switch {
	case o.item != nil:
		body["inventory_item_id"], body["location_id"] = o.item.number, o.location.number
	default:
		body["id"], body["created_at"] = o.number, shopTime(o.history[0].at)
	}
	if o.parent != nil {
		body["order_id"] = o.parent.number
	}
	if o.kind == refund {
		delete(body, "updated_at")
	}
	return text(body)
}

// shopTime formats a time as REST and webhooks do, in the time zone of the shop. GraphQL uses UTC.
func shopTime(at int64) string {
	return time.UnixMicro(at - at%second).In(time.FixedZone("", 3600)).Format(time.RFC3339)
}

// deleteWebhookBody returns the body of the webhook for a delete.
func (o *object) deleteWebhookBody() []byte {
	if o.item != nil {
		return text(tree{"inventory_item_id": o.item.number, "location_id": o.location.number})
	}
	body := tree{"id": o.number}
	for name, v := range o.kind.deleteBody {
		body[name], body["admin_graphql_api_id"] = v, o.gid()
	}
	return text(body)
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return b
}

// restBody returns a body as REST returns it.
func (f *Fake) restBody(body []byte) json.RawMessage {
	if !f.options.RESTOnlyField {
		return body
	}
	return append([]byte(strings.TrimSuffix(string(body), "}")), `,"rest_only":"yes"}`...)
}
