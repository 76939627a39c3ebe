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

// problem is an error of GraphQL.
type problem struct {
	code, message string
	// required is the scope that the key lacks.
	required string
}

func (p *problem) Error() string { return p.message }

// graph answers a query.
func (c *call) graph(r *http.Request) answer {
	var in struct {
		Query     string         `json:"query"`
		Variables map[string]any `json:"variables"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("Content-Type") != "application/json" {
		return answer{status: http.StatusBadRequest, body: text(tree{"errors": tree{"query": "Required parameter missing or invalid"}})}
	}
	d, err := parse(in.Query)
	if err != nil {
		return c.wrong(0, &problem{message: err.Error()})
	}
	if err := d.check(in.Variables); err != nil {
		return c.wrong(0, &problem{code: "undefinedField", message: err.Error()}) // Shopify has a code for each mistake
	}
	c.variables = in.Variables
	cost := c.price(d.fields)
	if !c.fake.points.take(cost) {
		return c.wrong(cost, &problem{code: "THROTTLED", message: "Throttled"})
	}
	data, err := c.root(d.fields)
	if err != nil {
		p, ok := err.(*problem)
		if !ok {
			p = &problem{message: err.Error()}
		}
		return c.wrong(cost, p)
	}
	return answer{status: http.StatusOK, body: text(tree{"data": data, "extensions": tree{"cost": c.costs(cost)}})}
}

// wrong is the answer of a query that came to nothing, which HTTP calls good all the same.
func (c *call) wrong(cost float64, p *problem) answer {
	extensions := tree{}
	if p.code != "" {
		extensions["code"] = p.code
	}
	if p.required != "" {
		extensions["requiredAccess"] = "`" + p.required + "` access scope."
	}
	return answer{status: http.StatusOK, body: text(tree{"errors": []any{tree{"message": p.message, "extensions": extensions}}, "extensions": tree{"cost": c.costs(cost)}})}
}

func (c *call) costs(asked float64) tree {
	p := &c.fake.points
	return tree{"requestedQueryCost": asked, "actualQueryCost": asked, "throttleStatus": tree{"maximumAvailable": p.most, "currentlyAvailable": p.now(), "restoreRate": p.rate}}
}

// price is a point for each object that a query may answer.
func (c *call) price(fields []selection) float64 {
	total := 0.0
	for _, s := range fields {
		n := 1.0
		if first, ok := c.value(s.args["first"]).(float64); ok {
			n = first
		}
		if len(s.sub) > 0 {
			total += 1 + n*max(1, c.price(s.sub)-1)
		}
	}
	return min(total, 999)
}

// value is what an argument comes to; nil where it is not there.
func (c *call) value(arg string) any {
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
			out[s.alias] = tree{"accessScopes": c.scopes()}
		case "bulkOperationRunQuery":
			out[s.alias], err = c.runBulk(s)
		case "bulkOperation":
			out[s.alias], err = c.bulk(s)
		case "fulfillment", "refund":
			out[s.alias], err = c.below(s, kindOf(s.name))
		default:
			k := listed[s.name]
			if err = c.mayGraph(k); err == nil {
				out[s.alias], err = c.connection(s, slices.DeleteFunc(c.visible(k, c.listTime(s)), func(o shown) bool { return leftOut(s, o) }))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// leftOut tells what a list leaves out unless it is asked for.
func leftOut(s selection, o shown) bool {
	return o.object.kind.name == "location" && s.args["includeInactive"] != "true" && strings.Contains(string(o.body), `"active":false`)
}

var listed = map[string]*kind{"collections": kindOf("collection"), "customers": kindOf("customer"), "giftCards": giftCard, "draftOrders": kindOf("draft_order"), "inventoryItems": kindOf("inventory_item"),
	"locations": kindOf("location"), "orders": kindOf("order"), "products": kindOf("product"), "themes": kindOf("theme")}

func (c *call) scopes() []any {
	out := []any{}
	for _, name := range append([]string{"read_all_orders"}, scopes()...) {
		if c.may(name) {
			out = append(out, tree{"handle": name})
		}
	}
	return out
}

func (c *call) mayGraph(k *kind) error {
	if !c.may(k.scope) {
		return &problem{code: "ACCESS_DENIED", message: "Access denied for " + k.plural + " field. Required access: `" + k.scope + "` access scope.", required: k.scope}
	}
	return nil
}

// below is an object that lies below its order.
func (c *call) below(s selection, k *kind) (any, error) {
	if err := c.mayGraph(k); err != nil {
		return nil, err
	}
	id, _ := c.value(s.args["id"]).(string)
	number, ok := strings.CutPrefix(id, "gid://shopify/"+k.gid+"/")
	if !ok {
		return nil, &problem{message: "Invalid global id '" + id + "'", code: "RESOURCE_NOT_FOUND"}
	}
	o := c.fake.objects[k.name+" "+number]
	if o == nil {
		return nil, nil
	}
	if _, there := o.as(c.now); !there || c.hidden(o.parent) {
		return nil, nil
	}
	return tree{"order": tree{"legacyResourceId": o.parent.id}}, nil
}

// shown is an object as a list tells of it.
type shown struct {
	object *object
	revision
}

// visible are the objects of a kind that there are at a time.
func (c *call) visible(k *kind, at int64) (out []shown) {
	for _, o := range c.fake.kinds[k.name] {
		if r, there := o.as(at); there && !c.hidden(o) {
			out = append(out, shown{o, r})
		}
	}
	return out
}

// listTime is the moment that a list knows of: an index follows the objects.
func (c *call) listTime(s selection) int64 {
	if c.value(s.args["query"]) == nil {
		return c.now
	}
	return c.now - c.fake.UpTo(c.fake.options.Faults.Late)
}

// connection is a page of some objects. Its cursor is the sort key's value and the id that it stands behind.
func (c *call) connection(s selection, all []shown) (tree, error) {
	since, until, err := bounds(c.value(s.args["query"]))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(o shown) bool { return o.updated < since || o.updated > until })
	byChange := s.args["sortKey"] == "UPDATED_AT"
	key := func(o shown) [2]int64 {
		if byChange {
			return [2]int64{o.updated, o.object.number}
		}
		return [2]int64{0, o.object.number}
	}
	slices.SortFunc(all, func(a, b shown) int { x, y := key(a), key(b); return slices.Compare(x[:], y[:]) })
	if after, _ := c.value(s.args["after"]).(string); after != "" {
		var at [2]int64
		raw, _ := base64.StdEncoding.DecodeString(after)
		if n, _ := fmt.Sscan(string(raw), &at[0], &at[1]); n != 2 || c.expired || (at[0] != 0) != byChange {
			return nil, &problem{code: "BAD_REQUEST", message: "Invalid cursor for current pagination sort."}
		}
		all = slices.DeleteFunc(all, func(o shown) bool { k := key(o); return slices.Compare(k[:], at[:]) <= 0 })
	}
	first, _ := c.value(s.args["first"]).(float64)
	size := min(int(first), c.fake.options.Page)
	if first < 1 || first > 250 {
		return nil, &problem{message: "first must be from 1 to 250"}
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

func (c *call) page(s selection, all []shown, info tree) (tree, error) {
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

// node is what is asked for of an object.
func (c *call) node(fields []selection, o shown) (tree, error) {
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
			if err := c.mayGraph(kindOf("inventory_level")); err != nil {
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

// levelsAt are the levels of a location.
func (c *call) levelsAt(location *object, at int64) []shown {
	return slices.DeleteFunc(c.visible(kindOf("inventory_level"), at), func(l shown) bool { return l.object.location != location })
}

// bounds reads the only search that is understood: updated_at:>='...' AND updated_at:<='...'.
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
		return 0, 0, &problem{message: "the search is not understood: " + q}
	}
	return a.Unix(), b.Unix(), nil
}
