package shopify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.ObjectLister = Shopify{}

const (
	// listPage is the most that Shopify gives of a list at a time. A query for so many nodes of few fields is far below the 1,000 points that one may cost.
	listPage = 250
	// listLag is how late a list may be: Shopify answers one that is asked for by time from an index that follows the objects, and says of no longest time.
	listLag = time.Minute
)

// connection is how the objects of a type are listed by GraphQL: their ids and their versions, and nothing else.
type connection struct {
	// field is the connection's, and more are its arguments beside those that every list has.
	field, more string
	// sorts: it can be sorted; else it is by id.
	sorts bool
	// changed: it can be asked for by updated_at, and sorted by it where it has sort keys.
	changed bool
}

// connections are the lists (https://shopify.dev/docs/api/admin-graphql). Whatever a list leaves out unless it is asked for is asked for.
var connections = map[string]connection{
	"collection":     {field: "collections", sorts: true, changed: true},
	"customer":       {field: "customers", sorts: true, changed: true},
	"draft_order":    {field: "draftOrders", sorts: true, changed: true},
	"inventory_item": {field: "inventoryItems", changed: true},
	"location":       {field: "locations", more: ", includeInactive: true, includeLegacy: true", sorts: true},
	"order":          {field: "orders", sorts: true, changed: true},
	"product":        {field: "products", sorts: true, changed: true},
	"theme":          {field: "themes"},
}

const (
	levels       = "inventory_level"
	fulfillments = "fulfillment"
)

// Lists are the types of the table and those that the source describes, levels, and fulfillments. Fulfillments are listed with the orders that changed, of which many have none, and levels location by location.
func (Shopify) Lists(src *provider.Source, api *provider.API, account string) map[string]provider.List {
	if !ours(src, account) {
		return nil
	}
	out := map[string]provider.List{levels: {ByChange: true, Lag: listLag, Sparse: true}, fulfillments: {ByChange: true, Lag: listLag, Sparse: true}}
	for name, c := range connectionsOf(api) {
		k := kindOf(name)
		out[name] = provider.List{ByChange: c.changed, Lag: listLag, Blind: (k == nil || k.still) && (!byREST(name) || slices.Contains(api.Bulk, name))}
	}
	return out
}

// query is the connection's list. What it answers is named page, whatever the type.
func (c connection) query(byChange bool) string {
	declared, given := "", c.more
	if byChange {
		declared, given = ", $query: String", given+", query: $query"
	}
	switch {
	case c.sorts && byChange:
		given += ", sortKey: UPDATED_AT"
	case c.sorts:
		given += ", sortKey: ID"
	}
	return fmt.Sprintf("query($first: Int!, $after: String%s) { page: %s(first: $first, after: $after%s) { nodes { id updatedAt } pageInfo { hasNextPage endCursor } } }", declared, c.field, given)
}

// levelsQuery lists the levels of one location after the other. The levels of an item that is kept there no more are left out, as they are where one is read.
const levelsQuery = `query($location: String, $first: Int!, $after: String, $query: String) {
  locations(first: 1, after: $location, includeInactive: true, includeLegacy: true, sortKey: ID) {
    nodes {
      legacyResourceId
      page: inventoryLevels(first: $first, after: $after, query: $query) {
        nodes { updatedAt item { legacyResourceId } } pageInfo { hasNextPage endCursor }
      }
    }
    pageInfo { hasNextPage endCursor }
  }
}`

// ListObjects asks REST for whole objects where it has such a list, and GraphQL for ids and versions of the others; or it has a bulk operation write ids and versions of all.
func (Shopify) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, since, until time.Time, cursor string) provider.Call {
	changed := !since.IsZero() || !until.IsZero()
	if call, ok := bulkCall(api, account, objectType, changed, cursor); ok {
		return call
	}
	if byREST(objectType) {
		return resources[objectType].list(api, account, since, until, cursor)
	}
	variables := map[string]any{"first": listPage}
	if changed {
		variables["query"] = between(since, until)
	}
	if objectType == levels {
		location, after, _ := strings.Cut(cursor, " ")
		set(variables, "location", location)
		set(variables, "after", after)
		return ask(api, account, levelsQuery, variables)
	}
	set(variables, "after", cursor)
	return ask(api, account, connectionsOf(api)[objectType].query(changed), variables)
}

func set(variables map[string]any, name, value string) {
	if value != "" {
		variables[name] = value
	}
}

// between is Shopify's search for what changed in a time; its versions are in whole seconds.
func between(since, until time.Time) string {
	return "updated_at:>='" + seconds(since) + "' AND updated_at:<='" + seconds(until) + "'"
}

func seconds(t time.Time) string { return t.UTC().Truncate(time.Second).Format(time.RFC3339) }

// nodes is a page of a connection.
type nodes struct {
	Nodes []struct {
		ID        string    `json:"id"`
		UpdatedAt time.Time `json:"updatedAt"`
		Item      struct {
			ID string `json:"legacyResourceId"`
		} `json:"item"`
	} `json:"nodes"`
	Info pageInfo `json:"pageInfo"`
}

type pageInfo struct {
	More bool   `json:"hasNextPage"`
	End  string `json:"endCursor"`
}

// ObjectPage splits a page, of either API: what it holds says of which.
func (Shopify) ObjectPage(_ *provider.Source, _ *provider.API, _, objectType, cursor string, _ http.Header, body []byte) ([]provider.Listed, string, error) {
	var in map[string]json.RawMessage
	var page []provider.Listed
	var next string
	err := json.Unmarshal(body, &in)
	r := resources[objectType]
	list, byREST := in[r.plural]
	switch {
	case err != nil:
	case byREST && r.plural != "":
		page, next, err = r.page(cursor, list)
	case objectType == levels:
		page, next, err = levelPage(cursor, in["data"])
	default:
		page, next, err = connectionPage(in["data"])
	}
	if err != nil {
		return nil, "", fmt.Errorf("read page of objects of type %s: %w", objectType, err)
	}
	return page, next, nil
}

func connectionPage(data []byte) ([]provider.Listed, string, error) {
	var in struct {
		Page *nodes `json:"page"`
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &in); err != nil {
			return nil, "", err
		}
	}
	if in.Page == nil || in.Page.Info.More && in.Page.Info.End == "" {
		return nil, "", errors.New("the answer is no list, or one that goes on and does not say where")
	}
	var page []provider.Listed
	for _, n := range in.Page.Nodes {
		one, err := listed(gidNumber(n.ID), n.UpdatedAt)
		if err != nil {
			return nil, "", err
		}
		page = append(page, one)
	}
	if !in.Page.Info.More {
		return page, "", nil
	}
	return page, in.Page.Info.End, nil
}

// listed is an object that a list tells the version of.
func listed(id string, updated time.Time) (provider.Listed, error) {
	if !plainNumber(id) || updated.Unix() <= 0 {
		return provider.Listed{}, errors.New("a member has no id that can be read, or no updatedAt")
	}
	return provider.Listed{ObjectID: id, At: updated.UnixMicro(), HasAt: true}, nil
}

// levelPage splits a page of the levels of one location. The cursor is the one behind the location before ("" is the first), a space, and the one of the levels.
func levelPage(cursor string, data []byte) ([]provider.Listed, string, error) {
	var in struct {
		Locations *struct {
			Nodes []struct {
				ID   string `json:"legacyResourceId"`
				Page nodes  `json:"page"`
			} `json:"nodes"`
			Info pageInfo `json:"pageInfo"`
		} `json:"locations"`
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &in); err != nil {
			return nil, "", err
		}
	}
	if in.Locations == nil {
		return nil, "", errors.New("the answer is no list")
	}
	var page []provider.Listed
	before, _, _ := strings.Cut(cursor, " ")
	for _, l := range in.Locations.Nodes {
		for _, n := range l.Page.Nodes {
			one, err := listed(n.Item.ID+":"+l.ID, n.UpdatedAt)
			if err != nil {
				return nil, "", err
			}
			page = append(page, one)
		}
		if l.Page.Info.More {
			return page, before + " " + l.Page.Info.End, nil
		}
	}
	if in.Locations.Info.More {
		return page, in.Locations.Info.End, nil
	}
	return page, "", nil
}
