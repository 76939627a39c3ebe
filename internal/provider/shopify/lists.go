package shopify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
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

// Lists are the types of the table, levels, and fulfillments. Fulfillments are listed with the orders that changed.
func (Shopify) Lists(src *provider.Source, _ *provider.API, account string) map[string]provider.List {
	if !ours(src, account) {
		return nil
	}
	out := map[string]provider.List{levels: {ByChange: true, Lag: listLag}, fulfillments: {ByChange: true, Lag: listLag}}
	for name, c := range connections {
		out[name] = provider.List{ByChange: c.changed, Lag: listLag}
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

// ListObjects asks GraphQL for ids and versions; of fulfillments, which it lists nowhere by themselves, REST for the orders that hold them.
func (Shopify) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, since, until time.Time, cursor string) provider.Call {
	c := connections[objectType]
	if objectType == fulfillments {
		return listFulfillments(api, account, since, until, cursor)
	}
	variables := map[string]any{"first": listPage}
	changed := !since.IsZero() || !until.IsZero()
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
	return ask(api, account, c.query(changed), variables)
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

// listFulfillments lists orders. A page of them has a cursor in its header, which stands for all that was asked for but the size and the fields.
func listFulfillments(api *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	query := url.Values{"limit": {strconv.Itoa(listPage)}, "fields": {"id,fulfillments"}}
	switch {
	case cursor != "":
		query.Set("page_info", cursor)
	case !since.IsZero() || !until.IsZero():
		query.Set("updated_at_min", seconds(since))
		query.Set("updated_at_max", seconds(until))
		query.Set("status", "any")
	default:
		query.Set("status", "any") // else the closed and cancelled ones are left out
	}
	return provider.Call{Account: account, Path: apiPath(api) + "orders.json", Query: query}
}

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

// ObjectPage splits a page.
func (Shopify) ObjectPage(_ *provider.Source, _ *provider.API, _, objectType, cursor string, header http.Header, body []byte) ([]provider.Listed, string, error) {
	var page []provider.Listed
	var next string
	var err error
	switch objectType {
	case fulfillments:
		page, next, err = fulfillmentPage(header, body)
	case levels:
		page, next, err = levelPage(cursor, body)
	default:
		page, next, err = connectionPage(body)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read page of objects of type %s: %w", objectType, err)
	}
	return page, next, nil
}

func connectionPage(body []byte) ([]provider.Listed, string, error) {
	var in struct {
		Data struct {
			Page *nodes `json:"page"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, "", err
	}
	if in.Data.Page == nil || in.Data.Page.Info.More && in.Data.Page.Info.End == "" {
		return nil, "", errors.New("the answer is no list, or one that goes on and does not say where")
	}
	var page []provider.Listed
	for _, n := range in.Data.Page.Nodes {
		one, err := listed(gidNumber(n.ID), n.UpdatedAt)
		if err != nil {
			return nil, "", err
		}
		page = append(page, one)
	}
	if !in.Data.Page.Info.More {
		return page, "", nil
	}
	return page, in.Data.Page.Info.End, nil
}

// listed is an object that a list tells the version of.
func listed(id string, updated time.Time) (provider.Listed, error) {
	if !plainNumber(id) || updated.Unix() <= 0 {
		return provider.Listed{}, errors.New("a member has no id that can be read, or no updatedAt")
	}
	return provider.Listed{ObjectID: id, At: updated.UnixMicro(), HasAt: true}, nil
}

// levelPage splits a page of the levels of one location. The cursor is the one behind the location before ("" is the first), a space, and the one of the levels.
func levelPage(cursor string, body []byte) ([]provider.Listed, string, error) {
	var in struct {
		Data struct {
			Locations *struct {
				Nodes []struct {
					ID   string `json:"legacyResourceId"`
					Page nodes  `json:"page"`
				} `json:"nodes"`
				Info pageInfo `json:"pageInfo"`
			} `json:"locations"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, "", err
	}
	if in.Data.Locations == nil {
		return nil, "", errors.New("the answer is no list")
	}
	var page []provider.Listed
	before, _, _ := strings.Cut(cursor, " ")
	for _, l := range in.Data.Locations.Nodes {
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
	if in.Data.Locations.Info.More {
		return page, in.Data.Locations.Info.End, nil
	}
	return page, "", nil
}

// fulfillmentPage takes the fulfillments out of orders, each as REST answers one by itself.
func fulfillmentPage(header http.Header, body []byte) ([]provider.Listed, string, error) {
	var in struct {
		Orders *[]struct {
			Fulfillments []json.RawMessage `json:"fulfillments"`
		} `json:"orders"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, "", err
	}
	if in.Orders == nil {
		return nil, "", errors.New("the answer is no list of orders")
	}
	var page []provider.Listed
	for _, o := range *in.Orders {
		for _, raw := range o.Fulfillments {
			var f struct {
				ID json.Number `json:"id"`
			}
			if err := json.Unmarshal(raw, &f); err != nil || digits(f.ID.String()) == "" {
				return nil, "", errors.New("a fulfillment has no id that can be read")
			}
			page = append(page, provider.Listed{ObjectID: f.ID.String(), Body: fmt.Appendf(nil, `{"fulfillment":%s}`, raw)})
		}
	}
	return page, nextPage(header), nil
}

// nextPage is the cursor of the page that follows, "" where none does: <https://...?page_info=...>; rel="next".
func nextPage(header http.Header) string {
	for _, line := range header.Values("Link") {
		for link := range strings.SplitSeq(line, ",") {
			address, rel, _ := strings.Cut(link, ";")
			if !strings.Contains(rel, `rel="next"`) {
				continue
			}
			u, err := url.Parse(strings.Trim(strings.TrimSpace(address), "<>"))
			if err == nil {
				return u.Query().Get("page_info")
			}
		}
	}
	return ""
}
