package shopify

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// resource is how REST lists whole objects of a type: by their ids, upwards, from behind the last one that was told, so that no place in the list is ever
// forgotten, and what changes meanwhile moves nothing.
type resource struct {
	// plural is the path, and the member of the answer that holds the list.
	plural string
	// query is asked for besides: what a list leaves out unless it is asked for.
	query url.Values
	// limit is how many of them a page has.
	limit int
	// inside is the member of each that holds the objects; "": it is one itself.
	inside string
}

// resources are the lists (https://shopify.dev/docs/api/admin-rest). Those that are not here leave out what nobody can ask for, or are no lists of their own.
var resources = map[string]resource{
	"customer":   {plural: "customers", limit: 100},
	"order":      {plural: "orders", query: url.Values{"status": {"any"}}, limit: 100},
	"product":    {plural: "products", limit: 100},
	fulfillments: {plural: "orders", query: url.Values{"status": {"any"}, "fields": {"id,fulfillments"}}, limit: 250, inside: fulfillments + "s"},
}

// byREST tells which API lists a type: REST tells whole objects, which a sweep compares and takes as they are, and GraphQL versions alone.
func byREST(objectType string) bool {
	_, ok := resources[objectType]
	return ok
}

// list asks for the page behind an id.
func (r resource) list(api *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	query := url.Values{"limit": {strconv.Itoa(r.limit)}, "since_id": {"0"}}
	for name, values := range r.query {
		query[name] = values
	}
	if cursor != "" {
		query.Set("since_id", cursor)
	}
	if !since.IsZero() || !until.IsZero() {
		query.Set("updated_at_min", seconds(since))
		query.Set("updated_at_max", seconds(until))
	}
	return provider.Call{Account: account, Path: apiPath(api) + r.plural + ".json", Query: query}
}

// page splits a page. The list ends with an empty one: a short one may have been cut for another reason.
func (r resource) page(cursor string, list json.RawMessage) (page []provider.Listed, next string, err error) {
	var members []json.RawMessage
	if err := json.Unmarshal(list, &members); err != nil || members == nil {
		return nil, "", errors.New("the answer is no list")
	}
	last, _ := strconv.ParseUint(cursor, 10, 64)
	for _, raw := range members {
		var head struct {
			ID           json.Number       `json:"id"`
			UpdatedAt    time.Time         `json:"updated_at"`
			Fulfillments []json.RawMessage `json:"fulfillments"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, "", err
		}
		id, err := strconv.ParseUint(head.ID.String(), 10, 64)
		if err != nil || id <= last {
			return nil, "", fmt.Errorf("the list is not in the order of ids: %.20q comes behind %d", head.ID, last)
		}
		last = id
		if r.inside != "" {
			if page, err = appendFulfillments(page, head.Fulfillments); err != nil {
				return nil, "", err
			}
			continue
		}
		one, err := listed(head.ID.String(), head.UpdatedAt)
		if err != nil {
			return nil, "", err
		}
		one.Body = fmt.Appendf(nil, `{%q:%s}`, r.plural[:len(r.plural)-1], raw)
		page = append(page, one)
	}
	if len(members) == 0 {
		return nil, "", nil
	}
	return page, strconv.FormatUint(last, 10), nil
}

// appendFulfillments adds an order's fulfillments, each as REST answers one by itself.
func appendFulfillments(page []provider.Listed, all []json.RawMessage) ([]provider.Listed, error) {
	for _, raw := range all {
		var head struct {
			ID        json.Number `json:"id"`
			UpdatedAt time.Time   `json:"updated_at"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, err
		}
		one, err := listed(head.ID.String(), head.UpdatedAt)
		if err != nil {
			return nil, err
		}
		one.Body = fmt.Appendf(nil, `{"fulfillment":%s}`, raw)
		page = append(page, one)
	}
	return page, nil
}
