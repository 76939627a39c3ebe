package shopifyfake

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

var notFound = answer{status: http.StatusNotFound, body: []byte(`{"errors":"Not Found"}`)}

// rest answers GET of one object, and of the orders that fulfillments are listed with.
func (c *call) rest(r *http.Request, path []string) answer {
	query := r.URL.Query()
	switch {
	case len(path) == 1 && path[0] == "orders.json":
		return c.orders(r, query)
	case len(path) == 1 && path[0] == "inventory_levels.json":
		return c.level(query)
	case len(query) > 0:
		return answer{status: http.StatusBadRequest, body: []byte(`{"errors":"unknown parameter"}`)} // Shopify lets it pass: here it is a mistake
	case len(path) == 4 && path[0] == "orders" && path[2] == "fulfillments":
		return c.one(kindOf("fulfillment"), strings.TrimSuffix(path[3], ".json"), path[1])
	case len(path) == 2:
		for _, k := range kinds {
			if k.plural == path[0] && k.name != "fulfillment" && k.name != "inventory_level" {
				return c.one(k, strings.TrimSuffix(path[1], ".json"), "")
			}
		}
	}
	return notFound
}

func (c *call) denied(scope string) answer {
	return answer{status: http.StatusForbidden, body: text(tree{"errors": "[API] This action requires merchant approval for " + scope + " scope."})}
}

func (c *call) one(k *kind, id, parent string) answer {
	if !c.may(k.scope) {
		return c.denied(k.scope)
	}
	o := c.fake.objects[k.name+" "+id]
	if o == nil || c.hidden(o) || parent != "" && (o.parent.id != parent || c.hidden(o.parent)) {
		return notFound
	}
	r, there := o.as(c.now)
	if !there {
		return notFound
	}
	return answer{status: http.StatusOK, body: text(tree{k.name: c.fake.rest(r.body)})}
}

func (c *call) level(query url.Values) answer {
	if !c.may("read_inventory") {
		return c.denied("read_inventory")
	}
	found := []any{}
	if o := c.fake.objects["inventory_level "+query.Get("inventory_item_ids")+":"+query.Get("location_ids")]; o != nil {
		if r, there := o.as(c.now); there {
			found = append(found, c.fake.rest(r.body))
		}
	}
	return answer{status: http.StatusOK, body: text(tree{"inventory_levels": found})}
}

// orders is a page of orders with their fulfillments. Its cursor holds what was asked for.
func (c *call) orders(r *http.Request, query url.Values) answer {
	if !c.may("read_orders") {
		return c.denied("read_orders")
	}
	after := int64(0)
	if cursor := query.Get("page_info"); cursor != "" {
		raw, err := base64.URLEncoding.DecodeString(cursor)
		asked, bad := url.ParseQuery(string(raw))
		if err != nil || bad != nil || c.expired || len(query) != 3 {
			return answer{status: http.StatusBadRequest, body: []byte(`{"errors":{"page_info":"Invalid value."}}`)}
		}
		after, _ = strconv.ParseInt(asked.Get("after"), 10, 64)
		asked.Set("limit", query.Get("limit"))
		asked.Set("fields", query.Get("fields"))
		query = asked
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit < 1 || limit > 250 || query.Get("status") != "any" || query.Get("fields") != "id,fulfillments" {
		return answer{status: http.StatusBadRequest, body: []byte(`{"errors":"limit, status or fields are not as this shop expects them"}`)}
	}
	since, until := restTime(query.Get("updated_at_min"), 0), restTime(query.Get("updated_at_max"), 1<<62)
	all := slices.DeleteFunc(c.visible(kindOf("order"), c.now), func(o shown) bool { return o.updated < since || o.updated > until || o.object.number <= after })
	limit = min(limit, c.fake.options.Page)
	more := len(all) > limit
	all = all[:min(limit, len(all))]
	list := []any{}
	for _, o := range all {
		list = append(list, tree{"id": o.object.number, "fulfillments": c.fulfillmentsOf(o.object)})
	}
	a := answer{status: http.StatusOK, header: http.Header{}, body: text(tree{"orders": list})}
	if more {
		query.Set("after", all[len(all)-1].object.id)
		a.header.Set("Link", fmt.Sprintf(`<https://%s/admin/api/%s/orders.json?limit=%d&page_info=%s>; rel="next"`, Shop, Version, limit,
			url.QueryEscape(base64.URLEncoding.EncodeToString([]byte(query.Encode())))))
	}
	return a
}

func (c *call) fulfillmentsOf(order *object) []json.RawMessage {
	out := []json.RawMessage{}
	for _, o := range c.visible(kindOf("fulfillment"), c.now) {
		if o.object.parent == order {
			out = append(out, c.fake.rest(o.body))
		}
	}
	return out
}

func restTime(s string, none int64) int64 {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return none
	}
	return t.Unix()
}
