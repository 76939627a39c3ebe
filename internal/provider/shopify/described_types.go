package shopify

import (
	"errors"
	"fmt"
	"maps"
	"regexp"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.TypeChecker = Shopify{}

var (
	typeName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	getPath  = regexp.MustCompile(`^[a-z0-9_]+(/[a-z0-9_]+)*/\{id\}\.json$`)
	// listField matches a connection, with boolean arguments.
	listField = regexp.MustCompile(
		`^([a-z][A-Za-z0-9]*)(?:\(([a-z][A-Za-z0-9]*: (?:true|false)(?:, [a-z][A-Za-z0-9]*: (?:true|false))*)\))?$`)
)

// CheckType accepts a type that is not in the tables, or is there without a list.
func (Shopify) CheckType(name string, t provider.APIType) error {
	_, read := gets[name]
	_, isListed := connections[name]
	switch {
	case !typeName.MatchString(name):
		return errors.New("is not the name of a type: write it as the mirror does, e.g. gift_card")
	case isListed || name == inventoryLevel || name == fulfillments:
		return errors.New("is supported without a description: leave it out")
	case read && t.Get != "":
		return errors.New("get: the provider knows how to read it: leave get out, and set list only")
	case !read && ruleOf(name) != nil:
		return errors.New("the API reads no such object by its name in the format of its webhooks: leave it out")
	case !read && !getPath.MatchString(t.Get):
		return fmt.Errorf("get: %.100q is not a path of one object after the version: write e.g. gift_cards/{id}.json",
			t.Get)
	case t.List == "" && (t.Changed || read):
		return errors.New("list: is not set: name the connection of GraphQL")
	case t.List != "" && !listField.MatchString(t.List):
		return fmt.Errorf("list: %.100q is not a connection: write e.g. giftCards, or "+
			"fulfillmentOrders(includeClosed: true)", t.List)
	}
	return nil
}

// connectionsOf returns the lists of the table and those that a source describes. The latter are
// sorted by id, as connections are by default.
func connectionsOf(api *provider.API) map[string]connection {
	if api == nil || len(api.Types) == 0 {
		return connections
	}
	all := maps.Clone(connections)
	for name, t := range api.Types {
		if parts := listField.FindStringSubmatch(t.List); parts != nil {
			c := connection{field: parts[1], changed: t.Changed}
			if parts[2] != "" {
				c.more = ", " + parts[2]
			}
			all[name] = c
		}
	}
	return all
}

// getOf returns how one object of a type is read, from the table or the source's description.
func getOf(api *provider.API, objectType string) (get, bool) {
	g, ok := gets[objectType]
	if t := api.Types[objectType]; !ok && t.Get != "" {
		return get{t.Get, objectType}, true
	}
	return g, ok
}
