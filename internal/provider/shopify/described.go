package shopify

import (
	"errors"
	"fmt"
	"maps"
	"regexp"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Typed = Shopify{}

var (
	typeName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	getPath  = regexp.MustCompile(`^[a-z0-9_]+(/[a-z0-9_]+)*/\{id\}\.json$`)
	// listField is a connection, with arguments that are true or false.
	listField = regexp.MustCompile(`^([a-z][A-Za-z0-9]*)(?:\(([a-z][A-Za-z0-9]*: (?:true|false)(?:, [a-z][A-Za-z0-9]*: (?:true|false))*)\))?$`)
)

// CheckType wants a type that the tables do not have, or have without a list.
func (Shopify) CheckType(name string, t provider.APIType) error {
	_, read := gets[name]
	_, isListed := connections[name]
	switch {
	case !typeName.MatchString(name):
		return errors.New("is no name of a type: write it as the mirror has it, e.g. gift_card")
	case isListed || name == levels || name == fulfillments:
		return errors.New("is read and listed without being described: leave it out")
	case read && t.Get != "":
		return errors.New("get: it is read without being told how: leave get out, and say list alone")
	case !read && kindOf(name) != nil:
		return errors.New("the API reads no such object by its name in the shape of its webhooks: leave it out")
	case !read && !getPath.MatchString(t.Get):
		return fmt.Errorf("get: %.100q is no path of one object behind the version: write e.g. gift_cards/{id}.json", t.Get)
	case t.List == "" && (t.Changed || read):
		return errors.New("list: is not set: name the connection of GraphQL")
	case t.List != "" && !listField.MatchString(t.List):
		return fmt.Errorf("list: %.100q is no connection: write e.g. giftCards, or fulfillmentOrders(includeClosed: true)", t.List)
	}
	return nil
}

// connectionsOf are the lists of the table, and those that a source describes. These are by id, as connections are whose order is not asked for.
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

// getOf is how one object of a type is read, of the table or as a source describes it.
func getOf(api *provider.API, objectType string) (get, bool) {
	g, ok := gets[objectType]
	if t := api.Types[objectType]; !ok && t.Get != "" {
		return get{t.Get, objectType}, true
	}
	return g, ok
}
