package shopify

import (
	"encoding/json"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// get is how one object of a type is read from the REST API, which answers it in the shape that webhooks deliver.
type get struct {
	// path follows /admin/api/VERSION/; {id} is the object's name in the mirror.
	path string
	// wrap is the member of the answer that holds the object.
	wrap string
}

// gets are the types that are read (https://shopify.dev/docs/api/admin-rest). Left out are types that REST reads by what the mirror knows of them no more or
// never did:
//   - order_transaction: below its order, and neither the mirror nor GraphQL knows of which by its number;
//   - cart: has no Admin API; checkout: by its token, and the mirror knows it by its number;
//   - bulk_operation, company, company_contact, company_location, return, subscription_contract: in GraphQL alone, in another shape than their webhooks';
//   - domain: its webhooks are not of the Admin API's objects.
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

	// Read in ways of their own.
	"fulfillment":     {"", "fulfillment"},
	"refund":          {"", "refund"},
	"inventory_level": {"inventory_levels.json", "inventory_levels"},
}

// below are the types that REST reads below their order, by their place there. A refund is made once, but its transactions go on.
var below = map[string]string{"fulfillment": "fulfillments", "refund": "refunds"}

// orderQuery finds the order of an object, by the field of its type. The object is named so, so that null is seen to be missing.
func orderQuery(field string) string {
	return `query($id: ID!) { object: ` + field + `(id: $id) { order { legacyResourceId } } }`
}

// Fetch reads an object of the table, of the one shop that the key is of.
func (Shopify) Fetch(src *provider.Source, api *provider.API, account, objectType, objectID string) (provider.Call, bool) {
	g, ok := getOf(api, objectType)
	if !ok || !ours(src, account) || !plainNumber(objectID) {
		return provider.Call{}, false
	}
	if below[objectType] != "" {
		return ask(api, account, orderQuery(objectType), map[string]any{"id": gidPrefix + kindOf(objectType).gid + "/" + objectID}), !strings.Contains(objectID, ":")
	}
	if objectType == levels {
		item, location, ok := strings.Cut(objectID, ":")
		return provider.Call{Account: account, Path: apiPath(api) + g.path, Query: url.Values{"inventory_item_ids": {item}, "location_ids": {location}}}, ok
	}
	return provider.Call{Account: account, Path: apiPath(api) + strings.Replace(g.path, "{id}", objectID, 1)}, !strings.Contains(objectID, ":")
}

// Step reads a fulfillment or a refund below its order.
func (Shopify) Step(api *provider.API, account, objectType, objectID string, body []byte) (provider.Call, bool) {
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
	return provider.Call{Account: account, Path: apiPath(api) + "orders/" + found.Data.Object.Order.ID + "/" + below[objectType] + "/" + objectID + ".json"}, true
}
