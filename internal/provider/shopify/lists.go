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
	// listPage is Shopify's maximum page size. A query for this many nodes with few fields costs
	// much less than the limit of 1,000 points.
	listPage = 250
	// listLag is how old a list may be. Shopify reads lists limited by time from an index that lags
	// behind the objects, and documents no maximum.
	listLag = time.Minute
)

// connection says how GraphQL lists the objects of a type: only their ids and versions.
type connection struct {
	// field is the name of the connection, and more are its arguments in addition to those of every
	// list.
	field, more string
	// sorts means that it can be sorted; otherwise it is sorted by id.
	sorts bool
	// changed means that it can be limited by updated_at, and sorted by it if it has sort keys.
	changed bool
}

// connections are the lists (https://shopify.dev/docs/api/admin-graphql). They request everything
// that a list leaves out by default.
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
	inventoryLevel = "inventory_level"
	fulfillments   = "fulfillment"
)

// Lists returns the types of the table, the types that the source describes, levels and
// fulfillments. Fulfillments are listed with the orders that changed, many of which have none.
// Levels are listed location by location.
func (Shopify) Lists(src *provider.Source, api *provider.API, account string) map[string]provider.List {
	if !isOwnShop(src, account) {
		return nil
	}
	out := map[string]provider.List{inventoryLevel: {ByChange: true, Lag: listLag, Sparse: true},
		fulfillments: {ByChange: true, Lag: listLag, Sparse: true}}
	for name, c := range connectionsOf(api) {
		k := ruleOf(name)
		out[name] = provider.List{ByChange: c.changed, Lag: listLag, VersionsOnly: (k == nil || k.mayNotAdvance) &&
			(!byREST(name) || slices.Contains(api.Bulk, name))}
	}
	return out
}

// query returns the list's query. Its result is always named page.
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
	return fmt.Sprintf("query($first: Int!, $after: String%s) { page: %s(first: $first, after: $after%s) { nodes { "+
		"id updatedAt } pageInfo { hasNextPage endCursor } } }", declared, c.field, given)
}

// levelsQuery lists the levels of one location after the other. It leaves out levels of items that
// are no longer stocked there, as the read of one level does.
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

// ListObjects reads whole objects from REST if it has such a list, or else ids and versions from
// GraphQL. With a bulk operation it reads ids and versions of all objects.
func (Shopify) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, since, until time.Time,
	cursor string) provider.Call {
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
	if objectType == inventoryLevel {
		location, after, _ := strings.Cut(cursor, " ")
		set(variables, "location", location)
		set(variables, "after", after)
		return graphqlCall(api, account, levelsQuery, variables)
	}
	set(variables, "after", cursor)
	return graphqlCall(api, account, connectionsOf(api)[objectType].query(changed), variables)
}

func set(variables map[string]any, name, value string) {
	if value != "" {
		variables[name] = value
	}
}

// between returns Shopify's search for what changed in a time. Its versions are whole seconds.
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

// ObjectPage splits a page of either API, which it recognizes by its content.
func (Shopify) ObjectPage(_ *provider.Source, _ *provider.API, _, objectType, cursor string, _ http.Header,
	body []byte) ([]provider.ListedObject, string, error) {
	var in map[string]json.RawMessage
	var page []provider.ListedObject
	var next string
	err := json.Unmarshal(body, &in)
	r := resources[objectType]
	list, byREST := in[r.plural]
	switch {
	case err != nil:
	case byREST && r.plural != "":
		page, next, err = r.page(cursor, list)
	case objectType == inventoryLevel:
		page, next, err = levelPage(cursor, in["data"])
	default:
		page, next, err = connectionPage(in["data"])
	}
	if err != nil {
		return nil, "", fmt.Errorf("read page of objects of type %s: %w", objectType, err)
	}
	return page, next, nil
}

func connectionPage(data []byte) ([]provider.ListedObject, string, error) {
	var in struct {
		Page *nodes `json:"page"`
	}
	if len(data) > 0 {
		if err := json.Unmarshal(data, &in); err != nil {
			return nil, "", err
		}
	}
	if in.Page == nil || in.Page.Info.More && in.Page.Info.End == "" {
		return nil, "", errors.New("the response is not a list, or continues without saying where")
	}
	var page []provider.ListedObject
	for _, n := range in.Page.Nodes {
		one, err := newListedObject(gidNumber(n.ID), n.UpdatedAt)
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

// newListedObject returns an object with its version only.
func newListedObject(id string, updated time.Time) (provider.ListedObject, error) {
	if !plainNumber(id) || updated.Unix() <= 0 {
		return provider.ListedObject{}, errors.New("a member has no readable id, or no updatedAt")
	}
	return provider.ListedObject{ObjectID: id, At: updated.UnixMicro(), HasAt: true}, nil
}

// levelPage splits a page of the levels of one location. The cursor consists of the cursor after
// the previous location ("" for the first), a space, and the cursor of the levels.
func levelPage(cursor string, data []byte) ([]provider.ListedObject, string, error) {
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
		return nil, "", errors.New("the response is not a list")
	}
	var page []provider.ListedObject
	before, _, _ := strings.Cut(cursor, " ")
	for _, l := range in.Locations.Nodes {
		for _, n := range l.Page.Nodes {
			one, err := newListedObject(n.Item.ID+":"+l.ID, n.UpdatedAt)
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
