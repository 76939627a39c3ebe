package shopifyfake

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// graphError is an error of GraphQL.
type graphError struct {
	code, message string
	// required is the scope that the key lacks.
	required string
}

func (p *graphError) Error() string { return p.message }

// graph executes a query.
func (c *call) graph(r *http.Request) response {
	var in struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("Content-Type") != "application/json" {
		return response{status: http.StatusBadRequest,
			body: text(tree{"errors": tree{"query": "Required parameter missing or invalid"}})}
	}
	d, err := parse(in.Query)
	if err != nil {
		return c.errorResponse(0, &graphError{message: err.Error()})
	}
	if err := d.check(in.Variables); err != nil {
		// Shopify has a code for each mistake
		return c.errorResponse(0, &graphError{code: "undefinedField", message: err.Error()})
	}
	c.variables = in.Variables
	cost := c.queryCost(d.fields)
	if !c.fake.points.take(cost) {
		return c.errorResponse(cost, &graphError{code: "THROTTLED", message: "Throttled"})
	}
	data, err := c.root(d.fields)
	if err != nil {
		p, ok := err.(*graphError)
		if !ok {
			p = &graphError{message: err.Error()}
		}
		return c.errorResponse(cost, p)
	}
	return response{status: http.StatusOK,
		body: text(tree{"data": data, "extensions": tree{"cost": c.costExtension(cost)}})}
}

// errorResponse returns the response for a failed query, which has the status 200.
func (c *call) errorResponse(cost float64, p *graphError) response {
	extensions := tree{}
	if p.code != "" {
		extensions["code"] = p.code
	}
	if p.required != "" {
		extensions["requiredAccess"] = "`" + p.required + "` access scope."
	}
	return response{status: http.StatusOK,
		body: text(tree{"errors": []any{tree{"message": p.message, "extensions": extensions}},
			"extensions": tree{"cost": c.costExtension(cost)}})}
}

func (c *call) costExtension(cost float64) tree {
	p := &c.fake.points
	return tree{"requestedQueryCost": cost, "actualQueryCost": cost,
		"throttleStatus": tree{"maximumAvailable": p.capacity, "currentlyAvailable": p.refill(), "restoreRate": p.rate}}
}

// queryCost returns a point for each object that a query may return.
func (c *call) queryCost(fields []selection) float64 {
	total := 0.0
	for _, s := range fields {
		n := 1.0
		if first, ok := c.argumentValue(s.args["first"]).(float64); ok {
			n = first
		}
		if len(s.sub) > 0 {
			total += 1 + n*max(1, c.queryCost(s.sub)-1)
		}
	}
	return min(total, 999)
}

// argumentValue returns the value of an argument, or nil.
func (c *call) argumentValue(arg string) any {
	if arg == "" {
		return nil
	}
	if name, ok := strings.CutPrefix(arg, "$"); ok {
		return c.variables[name]
	}
	if b, err := strconv.ParseBool(arg); err == nil && strings.HasSuffix(arg, "e") {
		return b
	}
	if n, err := strconv.Atoi(arg); err == nil {
		return float64(n)
	}
	return strings.Trim(arg, `"`)
}

func (c *call) root(fields []selection) (tree, error) {
	out := tree{}
	for _, s := range fields {
		var err error
		switch s.name {
		case "currentAppInstallation":
			out[s.alias] = tree{"accessScopes": c.grantedScopes()}
		case "bulkOperationRunQuery":
			out[s.alias], err = c.startBulkOperation(s)
		case "bulkOperation":
			out[s.alias], err = c.bulkStatus(s)
		case "fulfillment", "refund":
			out[s.alias], err = c.parentOrder(s, kindOf(s.name))
		default:
			k := listedKinds[s.name]
			if err = c.requireScope(k); err == nil {
				out[s.alias], err = c.connection(s, slices.DeleteFunc(c.visibleObjects(k, c.listTime(s)),
					func(o listedObject) bool { return isFilteredOut(s, o) }))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// isFilteredOut reports whether a list omits an object that was not requested explicitly.
func isFilteredOut(s selection, o listedObject) bool {
	return o.object.kind.name == "location" && s.args["includeInactive"] != "true" &&
		strings.Contains(string(o.body), `"active":false`)
}

var listedKinds = map[string]*kind{"collections": kindOf("collection"), "customers": kindOf("customer"),
	"giftCards": giftCard, "draftOrders": kindOf("draft_order"), "inventoryItems": kindOf("inventory_item"),
	"locations": kindOf("location"), "orders": kindOf("order"), "products": kindOf("product"),
	"themes": kindOf("theme")}

func (c *call) grantedScopes() []any {
	out := []any{}
	for _, name := range append([]string{"read_all_orders"}, scopes()...) {
		if c.hasScope(name) {
			out = append(out, tree{"handle": name})
		}
	}
	return out
}

func (c *call) requireScope(k *kind) error {
	if !c.hasScope(k.scope) {
		return &graphError{code: "ACCESS_DENIED", message: "Access denied for " + k.plural +
			" field. Required access: `" +
			k.scope + "` access scope.", required: k.scope}
	}
	return nil
}

// parentOrder returns the order of an object that belongs to an order.
func (c *call) parentOrder(s selection, k *kind) (any, error) {
	if err := c.requireScope(k); err != nil {
		return nil, err
	}
	id, _ := c.argumentValue(s.args["id"]).(string)
	number, ok := strings.CutPrefix(id, "gid://shopify/"+k.gid+"/")
	if !ok {
		return nil, &graphError{message: "Invalid global id '" + id + "'", code: "RESOURCE_NOT_FOUND"}
	}
	o := c.fake.objects[k.name+" "+number]
	if o == nil {
		return nil, nil
	}
	if _, there := o.revisionAt(c.now); !there || c.isHidden(o.parent) {
		return nil, nil
	}
	return tree{"order": tree{"legacyResourceId": o.parent.id}}, nil
}

// listedObject is an object in a list.
type listedObject struct {
	object *object
	revision
}

// visibleObjects returns the visible objects of a kind at a time.
func (c *call) visibleObjects(k *kind, at int64) (out []listedObject) {
	for _, o := range c.fake.kinds[k.name] {
		if r, there := o.revisionAt(at); there && !c.isHidden(o) {
			out = append(out, listedObject{o, r})
		}
	}
	return out
}

// listTime returns the time of the state that a list shows. Lists by time use an index, which may
// be behind.
func (c *call) listTime(s selection) int64 {
	if c.argumentValue(s.args["query"]) == nil {
		return c.now
	}
	return c.now - c.fake.RandomUpTo(c.fake.options.Faults.MaxListDelay)
}

// connection returns a page of objects. Its cursor consists of the value of the sort key and the id
// of the last object.
func (c *call) connection(s selection, all []listedObject) (tree, error) {
	since, until, err := bounds(c.argumentValue(s.args["query"]))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(o listedObject) bool { return o.updated < since || o.updated > until })
	byChange := s.args["sortKey"] == "UPDATED_AT"
	key := func(o listedObject) [2]int64 {
		if byChange {
			return [2]int64{o.updated, o.object.number}
		}
		return [2]int64{0, o.object.number}
	}
	slices.SortFunc(all, func(a, b listedObject) int { x, y := key(a), key(b); return slices.Compare(x[:], y[:]) })
	if after, _ := c.argumentValue(s.args["after"]).(string); after != "" {
		var at [2]int64
		raw, _ := base64.StdEncoding.DecodeString(after)
		if n, _ := fmt.Sscan(string(raw), &at[0], &at[1]); n != 2 || c.expired || (at[0] != 0) != byChange {
			return nil, &graphError{code: "BAD_REQUEST", message: "Invalid cursor for current pagination sort."}
		}
		all = slices.DeleteFunc(all, func(o listedObject) bool { k := key(o); return slices.Compare(k[:], at[:]) <= 0 })
	}
	first, _ := c.argumentValue(s.args["first"]).(float64)
	size := min(int(first), c.fake.options.MaxPageSize)
	if first < 1 || first > 250 {
		return nil, &graphError{message: "first must be from 1 to 250"}
	}
	more := len(all) > size
	all = all[:min(size, len(all))]
	end := any(nil)
	if len(all) > 0 {
		k := key(all[len(all)-1])
		end = base64.StdEncoding.EncodeToString([]byte(fmt.Sprint(k[0], k[1])))
	}
	return c.page(s, all, tree{"hasNextPage": more, "endCursor": end})
}

func (c *call) page(s selection, all []listedObject, info tree) (tree, error) {
	out := tree{}
	for _, f := range s.sub {
		if f.name == "pageInfo" {
			out[f.alias] = info
			continue
		}
		nodes := []any{}
		for _, o := range all {
			n, err := c.node(f.sub, o)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, n)
		}
		out[f.alias] = nodes
	}
	return out, nil
}

// node returns the requested fields of an object.
func (c *call) node(fields []selection, o listedObject) (tree, error) {
	out := tree{}
	for _, s := range fields {
		switch s.name {
		case "id":
			out[s.alias] = o.object.gid()
		case "updatedAt":
			out[s.alias] = time.Unix(o.updated, 0).UTC().Format(time.RFC3339)
		case "legacyResourceId":
			out[s.alias] = o.object.id
		case "item":
			out[s.alias] = tree{"legacyResourceId": o.object.item.id}
		case "location":
			out[s.alias] = tree{"legacyResourceId": o.object.location.id}
		case "inventoryLevels":
			if err := c.requireScope(kindOf("inventory_level")); err != nil {
				return nil, err
			}
			page, err := c.connection(s, c.levelsAt(o.object, c.listTime(s)))
			if err != nil {
				return nil, err
			}
			out[s.alias] = page
		}
	}
	return out, nil
}

// levelsAt returns the inventory levels of a location.
func (c *call) levelsAt(location *object, at int64) []listedObject {
	return slices.DeleteFunc(c.visibleObjects(kindOf("inventory_level"), at),
		func(l listedObject) bool { return l.object.location != location })
}

// bounds parses the only supported search: updated_at:>='...' AND updated_at:<='...'.
func bounds(query any) (since, until int64, err error) {
	q, ok := query.(string)
	if !ok {
		return 0, 1 << 62, nil
	}
	lower, upper, both := strings.Cut(q, " AND ")
	from, ok1 := strings.CutPrefix(lower, "updated_at:>='")
	to, ok2 := strings.CutPrefix(upper, "updated_at:<='")
	a, bad1 := time.Parse(time.RFC3339, strings.TrimSuffix(from, "'"))
	b, bad2 := time.Parse(time.RFC3339, strings.TrimSuffix(to, "'"))
	if !both || !ok1 || !ok2 || cmp.Or(bad1, bad2) != nil {
		return 0, 0, &graphError{message: "the search is not understood: " + q}
	}
	return a.Unix(), b.Unix(), nil
}
