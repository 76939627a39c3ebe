package shopify

import (
	"encoding/json"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// get says how one object of a type is read from the REST API. Shopify calls this API legacy, but
// only it returns objects in the format of webhooks. States of the mirror must not differ by how
// they were received, and GraphQL has no counterpart for some members.
type get struct {
	// path follows /admin/api/VERSION/; {id} is the object's name in the mirror.
	path string
	// wrap is the member of the response that contains the object.
	wrap string
}

// gets are the types that are read (https://shopify.dev/docs/api/admin-rest). notRead has the
// others.
var gets = map[string]get{
	"collection":     {"collections/{id}.json", "collection"},
	"customer":       {"customers/{id}.json", "customer"},
	"draft_order":    {"draft_orders/{id}.json", "draft_order"},
	"inventory_item": {"inventory_items/{id}.json", "inventory_item"},
	"location":       {"locations/{id}.json", "location"},
	"order":          {"orders/{id}.json", "order"},
	"product":        {"products/{id}.json", "product"},
	"shop":           {"shop.json", "shop"},
	"theme":          {"themes/{id}.json", "theme"},
	"variant":        {"variants/{id}.json", "variant"},

	// Fetch and SecondCall read these in other ways.
	"fulfillment":     {"", "fulfillment"},
	"refund":          {"", "refund"},
	"inventory_level": {"inventory_levels.json", "inventory_levels"},
}

// below are the types that REST reads below their order, with the path segment. A refund is created
// once, but its transactions may follow.
var below = map[string]string{"fulfillment": "fulfillments", "refund": "refunds"}

// orderQuery finds the order of an object, by the field of its type. The result is named object, so
// that Answer recognizes null as missing.
func orderQuery(field string) string {
	return `query($id: ID!) { object: ` + field + `(id: $id) { order { legacyResourceId } } }`
}

// Fetch reads an object of the table, from the shop that the key belongs to.
func (Shopify) Fetch(src *provider.Source, api *provider.API, account, objectType, objectID string) (provider.Call,
	bool) {
	g, ok := getOf(api, objectType)
	if !ok || !isOwnShop(src, account) || !plainNumber(objectID) {
		return provider.Call{}, false
	}
	if below[objectType] != "" {
		gid := gidPrefix + ruleOf(objectType).gid + "/" + objectID
		return graphqlCall(api, account, orderQuery(objectType), map[string]any{"id": gid}),
			!strings.Contains(objectID, ":")
	}
	if objectType == inventoryLevel {
		item, location, ok := strings.Cut(objectID, ":")
		return provider.Call{Account: account, Path: apiPath(api) + g.path,
			Query: url.Values{"inventory_item_ids": {item}, "location_ids": {location}}}, ok
	}
	return provider.Call{Account: account, Path: apiPath(api) + strings.Replace(g.path, "{id}", objectID, 1)},
		!strings.Contains(objectID, ":")
}

// SecondCall reads a fulfillment or a refund below its order.
func (Shopify) SecondCall(api *provider.API, account, objectType, objectID string, body []byte) (provider.Call, bool) {
	if below[objectType] == "" {
		return provider.Call{}, false
	}
	var found struct {
		Data struct {
			Object struct {
				Order struct {
					ID string `json:"legacyResourceId"`
				} `json:"order"`
			} `json:"object"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &found) != nil || digits(found.Data.Object.Order.ID) == "" {
		return provider.Call{}, false
	}
	return provider.Call{Account: account, Path: apiPath(api) + "orders/" + found.Data.Object.Order.ID + "/" +
		below[objectType] + "/" + objectID + ".json"}, true
}
