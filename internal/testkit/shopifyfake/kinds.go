package shopifyfake

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// kind is a type of object.
type kind struct {
	// name is the mirror's, plural the REST API's and that of the topics, gid GraphQL's, scope what a key must have.
	name, plural, gid, scope string
	// create, change and remove are the topics; remove is "" where a delete tells nobody, and kept where there is none.
	create, change, remove string
	kept                   bool
	// leftovers are in the body of a delete beside its id.
	leftovers tree
	// fields are in every body; each changes some of them.
	fields func(n int) tree
}

type tree map[string]any

var kinds = []*kind{
	{name: "order", plural: "orders", gid: "Order", scope: "read_orders", create: "orders/create", change: "orders/updated", remove: "orders/delete",
		fields: func(n int) tree {
			return tree{"line_items": []any{}, "note_attributes": []any{}, "taxes_included": true, "note": note(n), "customer": nil}
		}},
	{name: "product", plural: "products", gid: "Product", scope: "read_products", create: "products/create", change: "products/update", remove: "products/delete",
		fields: func(n int) tree {
			return tree{"handle": "kettle", "options": []any{}, "variants": []any{}, "title": note(n)}
		}},
	{name: "customer", plural: "customers", gid: "Customer", scope: "read_customers", create: "customers/create", change: "customers/update", remove: "customers/delete",
		leftovers: tree{"tax_exemptions": []any{}},
		fields:    func(n int) tree { return tree{"state": "enabled", "tax_exempt": false, "note": note(n)} }},
	{name: "draft_order", plural: "draft_orders", gid: "DraftOrder", scope: "read_draft_orders", create: "draft_orders/create", change: "draft_orders/update", remove: "draft_orders/delete",
		fields: func(n int) tree {
			return tree{"line_items": []any{}, "note_attributes": []any{}, "tax_exempt": false, "note": note(n)}
		}},
	{name: "collection", plural: "collections", gid: "Collection", scope: "read_products", create: "collections/create", change: "collections/update", remove: "collections/delete",
		leftovers: tree{"published_scope": nil},
		fields:    func(n int) tree { return tree{"handle": "tea", "sort_order": "manual", "title": note(n)} }},
	{name: "theme", plural: "themes", gid: "OnlineStoreTheme", scope: "read_themes", create: "themes/create", change: "themes/update", remove: "themes/delete",
		fields: func(n int) tree { return tree{"role": "unpublished", "name": note(n)} }},
	{name: "inventory_item", plural: "inventory_items", gid: "InventoryItem", scope: "read_inventory", create: "inventory_items/create", change: "inventory_items/update",
		remove: "inventory_items/delete",
		fields: func(n int) tree {
			return tree{"requires_shipping": true, "tracked": true, "cost": strconv.Itoa(n) + ".00"}
		}},
	{name: "inventory_level", plural: "inventory_levels", gid: "InventoryLevel", scope: "read_inventory", create: "inventory_levels/connect", change: "inventory_levels/update",
		remove: "inventory_levels/disconnect",
		fields: func(n int) tree { return tree{"available": n} }},
	{name: "location", plural: "locations", gid: "Location", scope: "read_locations", create: "locations/create", change: "locations/update", kept: true,
		fields: func(n int) tree { return tree{"active": n%3 != 2, "name": note(n)} }},
	{name: "fulfillment", plural: "fulfillments", gid: "Fulfillment", scope: "read_fulfillments", create: "fulfillments/create", change: "fulfillments/update", kept: true,
		fields: func(n int) tree { return tree{"line_items": []any{}, "status": "success", "tracking_number": note(n)} }},
}

// refund is a kind that the shop's life makes none of: a test does.
var refund = &kind{name: "refund", plural: "refunds", gid: "Refund", scope: "read_orders", create: "refunds/create", kept: true,
	fields: func(n int) tree {
		return tree{"refund_line_items": []any{}, "transactions": []any{}, "note": note(n)}
	}}

// giftCard is a kind that the provider knows only by a configuration; no topic tells of it.
var giftCard = &kind{name: "gift_card", plural: "gift_cards", gid: "GiftCard", scope: "read_gift_cards",
	fields: func(n int) tree { return tree{"balance": strconv.Itoa(n) + ".00", "note": note(n)} }}

// everyKind are those that live, and those that a test makes.
func everyKind() []*kind { return append(kinds[:len(kinds):len(kinds)], refund, giftCard) }

func note(n int) string { return "change " + strconv.Itoa(n) }

func kindOf(name string) *kind {
	for _, k := range everyKind() {
		if k.name == name {
			return k
		}
	}
	return nil
}

// object is one object and all that it ever was.
type object struct {
	kind *kind
	// id is the mirror's name of it; number is the last part of its GraphQL id.
	id     string
	number int64
	// parent is the order of a fulfillment, and item and location are those of a level.
	parent, item, location *object
	changes                int
	// away: it looks as if it were gone.
	away    bool
	history []revision
}

// revision is what an object was from a time on.
type revision struct {
	at int64
	// updated is the object's version, in whole seconds.
	updated int64
	// body is nil while the object is gone.
	body []byte
}

// as is what the object was at a time; false before it was made.
func (o *object) as(at int64) (r revision, there bool) {
	for _, one := range o.history {
		if one.at > at {
			break
		}
		r, there = one, true
	}
	return r, there && r.body != nil
}

func (o *object) latest() revision { return o.history[len(o.history)-1] }

func (o *object) alive() bool { return o.latest().body != nil }

func (o *object) gid() string {
	gid := "gid://shopify/" + o.kind.gid + "/" + strconv.FormatInt(o.number, 10)
	if o.item != nil {
		gid += "?inventory_item_id=" + o.item.id
	}
	return gid
}

// render is the object's body as a webhook carries it.
func (o *object) render(at int64) []byte {
	body := o.kind.fields(o.changes)
	body["updated_at"] = offset(at)
	body["admin_graphql_api_id"] = o.gid()
	switch {
	case o.item != nil:
		body["inventory_item_id"], body["location_id"] = o.item.number, o.location.number
	default:
		body["id"], body["created_at"] = o.number, offset(o.history[0].at)
	}
	if o.parent != nil {
		body["order_id"] = o.parent.number
	}
	if o.kind == refund {
		delete(body, "updated_at")
	}
	return text(body)
}

// offset is a time as REST and webhooks write it, in the shop's zone; GraphQL writes UTC.
func offset(at int64) string {
	return time.UnixMicro(at - at%second).In(time.FixedZone("", 3600)).Format(time.RFC3339)
}

// gone is the body of the webhook that tells of a delete.
func (o *object) gone() []byte {
	if o.item != nil {
		return text(tree{"inventory_item_id": o.item.number, "location_id": o.location.number})
	}
	body := tree{"id": o.number}
	for name, v := range o.kind.leftovers {
		body[name], body["admin_graphql_api_id"] = v, o.gid()
	}
	return text(body)
}

func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of maps of texts and numbers
	}
	return b
}

// rest is a body as REST answers it.
func (f *Fake) rest(body []byte) json.RawMessage {
	if !f.options.Shapes {
		return body
	}
	return append([]byte(strings.TrimSuffix(string(body), "}")), `,"rest_only":"yes"}`...)
}
