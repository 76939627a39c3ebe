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

// resource says how REST lists whole objects of a type: in order of ids, after the last listed id,
// so that no cursor expires, and changes meanwhile move no object.
type resource struct {
	// plural is the path, and the member of the response with the list.
	plural string
	// query has parameters for what a list leaves out by default.
	query url.Values
	// limit is the page size.
	limit int
	// inside is the member of each element that contains the objects; "" means that the element is
	// the object.
	inside string
}

// resources are the lists (https://shopify.dev/docs/api/admin-rest). Types that are not here have
// no list of their own, or their list leaves out objects that no parameter adds.
var resources = map[string]resource{
	"customer": {plural: "customers", limit: 100},
	"order":    {plural: "orders", query: url.Values{"status": {"any"}}, limit: 100},
	"product":  {plural: "products", limit: 100},
	fulfillments: {plural: "orders", query: url.Values{"status": {"any"}, "fields": {"id,fulfillments"}}, limit: 250,
		inside: fulfillments + "s"},
}

// byREST reports which API lists a type. REST returns whole objects, which an object scan compares
// and applies. GraphQL returns versions only.
func byREST(objectType string) bool {
	_, ok := resources[objectType]
	return ok
}

// list requests the page after an id.
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

// page splits a page. Only an empty page ends the list; a short one may have another cause.
func (r resource) page(cursor string, list json.RawMessage) (page []provider.ListedObject, next string, err error) {
	var members []json.RawMessage
	if err := json.Unmarshal(list, &members); err != nil || members == nil {
		return nil, "", errors.New("the response is not a list")
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
			return nil, "", fmt.Errorf("the list is not sorted by id: %.20q comes after %d", head.ID, last)
		}
		last = id
		if r.inside != "" {
			if page, err = appendFulfillments(page, head.Fulfillments); err != nil {
				return nil, "", err
			}
			continue
		}
		one, err := newListedObject(head.ID.String(), head.UpdatedAt)
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

// appendFulfillments adds an order's fulfillments, each in the format of a single fulfillment in
// REST.
func appendFulfillments(page []provider.ListedObject, all []json.RawMessage) ([]provider.ListedObject, error) {
	for _, raw := range all {
		var head struct {
			ID        json.Number `json:"id"`
			UpdatedAt time.Time   `json:"updated_at"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, err
		}
		one, err := newListedObject(head.ID.String(), head.UpdatedAt)
		if err != nil {
			return nil, err
		}
		one.Body = fmt.Appendf(nil, `{"fulfillment":%s}`, raw)
		page = append(page, one)
	}
	return page, nil
}
