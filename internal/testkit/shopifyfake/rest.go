package shopifyfake

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

var notFound = response{status: http.StatusNotFound, body: []byte(`{"errors":"Not Found"}`)}

// rest serves GET requests for one object and for lists.
func (c *call) rest(r *http.Request, path []string) response {
	query := r.URL.Query()
	switch {
	case len(path) == 1 && path[0] == "inventory_levels.json":
		return c.level(query)
	case len(path) == 1:
		for _, name := range []string{"customer", "order", "product"} {
			if k := kindOf(name); path[0] == k.plural+".json" {
				return c.list(k, query)
			}
		}
	case len(query) > 0:
		// Shopify ignores it; the fake reports the mistake
		return response{status: http.StatusBadRequest, body: []byte(`{"errors":"unknown parameter"}`)}
	case len(path) == 4 && path[0] == "orders":
		for _, k := range []*kind{kindOf("fulfillment"), refund} {
			if k.plural == path[2] {
				return c.one(k, strings.TrimSuffix(path[3], ".json"), path[1])
			}
		}
	case len(path) == 2:
		for _, k := range allKinds() {
			if k.plural == path[0] && k != refund && k.name != "fulfillment" && k.name != "inventory_level" {
				return c.one(k, strings.TrimSuffix(path[1], ".json"), "")
			}
		}
	}
	return notFound
}

func (c *call) denied(scope string) response {
	return response{status: http.StatusForbidden,
		body: text(tree{"errors": "[API] This action requires merchant approval for " + scope + " scope."})}
}

func (c *call) one(k *kind, id, parent string) response {
	if !c.hasScope(k.scope) {
		return c.denied(k.scope)
	}
	o := c.fake.objects[k.name+" "+id]
	if o == nil || c.isHidden(o) || parent != "" && (o.parent.id != parent || c.isHidden(o.parent)) {
		return notFound
	}
	r, there := o.revisionAt(c.now)
	if !there {
		return notFound
	}
	return response{status: http.StatusOK, body: text(tree{k.name: c.fake.restBody(r.body)})}
}

func (c *call) level(query url.Values) response {
	if !c.hasScope("read_inventory") {
		return c.denied("read_inventory")
	}
	found := []any{}
	if o := c.fake.objects["inventory_level "+query.Get("inventory_item_ids")+":"+query.Get("location_ids")]; o != nil {
		if r, there := o.revisionAt(c.now); there {
			found = append(found, c.fake.restBody(r.body))
		}
	}
	return response{status: http.StatusOK, body: text(tree{"inventory_levels": found})}
}

// list returns a page of complete objects, or of orders with their fulfillments only, in the order
// of ids after since_id.
func (c *call) list(k *kind, query url.Values) response {
	if !c.hasScope(k.scope) {
		return c.denied(k.scope)
	}
	part := query.Get("fields") != ""
	limit, err := strconv.Atoi(query.Get("limit"))
	after, bad := strconv.ParseInt(query.Get("since_id"), 10, 64)
	if err != nil || bad != nil || limit < 1 || limit > 250 || (k.name == "order") != (query.Get("status") == "any") ||
		part && query.Get("fields") != "id,fulfillments" {
		return response{status: http.StatusBadRequest,
			body: []byte(`{"errors":"limit, since_id, status or fields are not as this shop expects them"}`)}
	}
	since, until := restTime(query.Get("updated_at_min"), 0), restTime(query.Get("updated_at_max"), 1<<62)
	at := c.now
	if query.Has("updated_at_min") {
		at -= c.fake.RandomUpTo(c.fake.options.Faults.MaxListDelay)
	}
	all := slices.DeleteFunc(c.visibleObjects(k, at), func(o listedObject) bool {
		return o.updated < since || o.updated > until || o.object.number <= after
	})
	list := []any{}
	size := min(len(all), limit, c.fake.options.MaxPageSize)
	if size > 1 && c.fake.Random(100) < int64(c.fake.options.ShortPages) {
		size--
	}
	for _, o := range all[:size] {
		if part {
			list = append(list, tree{"id": o.object.number, "fulfillments": c.fulfillmentsOf(o.object)})
			continue
		}
		list = append(list, c.fake.restBody(o.body))
	}
	return response{status: http.StatusOK, body: text(tree{k.plural: list})}
}

func (c *call) fulfillmentsOf(order *object) []json.RawMessage {
	out := []json.RawMessage{}
	for _, o := range c.visibleObjects(kindOf("fulfillment"), c.now) {
		if o.object.parent == order {
			out = append(out, c.fake.restBody(o.body))
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
