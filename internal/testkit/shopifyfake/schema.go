package shopifyfake

import (
	"fmt"
	"slices"
	"strings"
)

// field is one of a type: what it is of, and the types of its arguments.
type field struct {
	of   string
	args map[string]string
}

var paged = map[string]string{"first": "Int", "after": "String", "query": "String"}

func with(args map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for name, of := range args {
		out[name] = of
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// schema is the part of Shopify's that this shop answers, of the version above (test/oracles holds what it answers against that). Types that are not in it are scalars and enumerations.
var schema = map[string]map[string]field{
	"QueryRoot": {
		"collections":            {of: "CollectionConnection", args: with(paged, "sortKey", "CollectionSortKeys")},
		"bulkOperation":          {of: "BulkOperation", args: map[string]string{"id": "ID!"}},
		"currentAppInstallation": {of: "AppInstallation"},
		"customers":              {of: "CustomerConnection", args: with(paged, "sortKey", "CustomerSortKeys")},
		"draftOrders":            {of: "DraftOrderConnection", args: with(paged, "sortKey", "DraftOrderSortKeys")},
		"fulfillment":            {of: "Fulfillment", args: map[string]string{"id": "ID!"}},
		"giftCards":              {of: "GiftCardConnection", args: with(paged, "sortKey", "GiftCardSortKeys")},
		"inventoryItems":         {of: "InventoryItemConnection", args: paged},
		"locations":              {of: "LocationConnection", args: with(paged, "sortKey", "LocationSortKeys", "includeInactive", "Boolean", "includeLegacy", "Boolean")},
		"orders":                 {of: "OrderConnection", args: with(paged, "sortKey", "OrderSortKeys")},
		"products":               {of: "ProductConnection", args: with(paged, "sortKey", "ProductSortKeys")},
		"refund":                 {of: "Refund", args: map[string]string{"id": "ID!"}},
		"themes":                 {of: "OnlineStoreThemeConnection", args: map[string]string{"first": "Int", "after": "String"}},
	},
	"Mutation":                     {"bulkOperationRunQuery": {of: "BulkOperationRunQueryPayload", args: map[string]string{"query": "String!", "groupObjects": "Boolean!"}}},
	"BulkOperationRunQueryPayload": {"bulkOperation": {of: "BulkOperation"}, "userErrors": {of: "BulkOperationUserError"}},
	"BulkOperationUserError":       {"code": {}, "field": {}, "message": {}},
	"BulkOperation": {"id": {}, "type": {}, "status": {}, "errorCode": {}, "createdAt": {}, "completedAt": {}, "objectCount": {}, "rootObjectCount": {}, "fileSize": {}, "url": {}, "partialDataUrl": {},
		"query": {}},
	"AppInstallation":  {"accessScopes": {of: "AccessScope"}},
	"AccessScope":      {"handle": {}},
	"Fulfillment":      {"order": {of: "Order"}},
	"GiftCard":         {"id": {}, "updatedAt": {}},
	"Refund":           {"order": {of: "Order"}},
	"InventoryLevel":   {"id": {}, "updatedAt": {}, "item": {of: "InventoryItem"}, "location": {of: "Location"}},
	"Location":         {"id": {}, "updatedAt": {}, "legacyResourceId": {}, "inventoryLevels": {of: "InventoryLevelConnection", args: with(paged, "includeInactive", "Boolean")}},
	"OnlineStoreTheme": {"id": {}, "updatedAt": {}},
	"PageInfo":         {"hasNextPage": {}, "endCursor": {}},
	"Order":            {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
	"Product":          {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
	"Customer":         {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
	"Collection":       {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
	"DraftOrder":       {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
	"InventoryItem":    {"id": {}, "updatedAt": {}, "legacyResourceId": {}},
}

var enums = map[string][]string{
	"CollectionSortKeys": {"ID", "RELEVANCE", "TITLE", "UPDATED_AT"},
	"DraftOrderSortKeys": {"CUSTOMER_NAME", "ID", "NUMBER", "RELEVANCE", "STATUS", "TOTAL_PRICE", "UPDATED_AT"},
	"CustomerSortKeys":   {"ID", "UPDATED_AT"},
	"LocationSortKeys":   {"ID", "NAME"},
	"OrderSortKeys":      {"ID", "PROCESSED_AT", "UPDATED_AT"},
	"ProductSortKeys":    {"ID", "UPDATED_AT"},
	"Boolean":            {"true", "false"},
}

// check holds a query against the schema.
func (d document) check(values map[string]any) error {
	used := map[string]bool{}
	if err := d.fits(d.root, d.fields, used); err != nil {
		return err
	}
	for name, of := range d.variables {
		value, given := values[name]
		switch {
		case !used[name]:
			return fmt.Errorf("variable $%s is declared but not used", name)
		case strings.HasSuffix(of, "!") && value == nil:
			return fmt.Errorf("variable $%s of type %s was provided invalid value", name, of)
		case given && !valueFits(strings.TrimSuffix(of, "!"), value):
			return fmt.Errorf("variable $%s of type %s was provided invalid value", name, of)
		}
	}
	for name := range values {
		if d.variables[name] == "" {
			return fmt.Errorf("variable $%s is given and not declared", name) // Shopify lets it pass: here it is a mistake
		}
	}
	return nil
}

func valueFits(of string, value any) bool {
	switch value.(type) {
	case float64:
		return of == "Int"
	case string:
		return of == "String" || of == "ID"
	}
	return value == nil
}

func (d document) fits(of string, fields []selection, used map[string]bool) error {
	for _, s := range fields {
		f, ok := fieldOf(of, s.name)
		if !ok {
			return fmt.Errorf("field '%s' doesn't exist on type '%s'", s.name, of)
		}
		if (len(s.sub) > 0) != (f.of != "") {
			return fmt.Errorf("field '%s' has selections where it must have none, or none where it must have some", s.name)
		}
		for name, value := range s.args {
			if err := d.argFits(f, s.name, name, value, used); err != nil {
				return err
			}
		}
		for name, t := range f.args {
			if s.args[name] == "" && (strings.HasSuffix(t, "!") || name == "first" && !d.bulk) {
				return fmt.Errorf("field '%s' is missing the argument: %s", s.name, name)
			}
		}
		if err := d.fits(f.of, s.sub, used); err != nil {
			return err
		}
	}
	return nil
}

// fieldOf is a field of a type; connections are made of their nodes' type.
func fieldOf(of, name string) (field, bool) {
	if node, ok := strings.CutSuffix(of, "Connection"); ok {
		switch name {
		case "nodes":
			return field{of: node}, true
		case "edges":
			return field{of: node + "Edge"}, true
		case "pageInfo":
			return field{of: "PageInfo"}, true
		}
		return field{}, false
	}
	if node, ok := strings.CutSuffix(of, "Edge"); ok && name == "node" {
		return field{of: node}, true
	}
	f, ok := schema[of][name]
	return f, ok
}

func (d document) argFits(f field, in, name, value string, used map[string]bool) error {
	want, ok := f.args[name]
	if !ok {
		return fmt.Errorf("field '%s' doesn't accept argument '%s'", in, name)
	}
	if variable, ok := strings.CutPrefix(value, "$"); ok {
		used[variable] = true
		if of := d.variables[variable]; of != want && strings.TrimSuffix(of, "!") != want {
			return fmt.Errorf("type mismatch on variable $%s and argument %s (%s / %s)", variable, name, of, want)
		}
		return nil
	}
	if values := enums[strings.TrimSuffix(want, "!")]; values != nil && !slices.Contains(values, value) {
		return fmt.Errorf("argument '%s' on Field '%s' has an invalid value (%s). Expected type '%s'", name, in, value, want)
	}
	if want == "Int" && strings.Trim(value, "0123456789") != "" {
		return fmt.Errorf("argument '%s' on Field '%s' has an invalid value (%s). Expected type 'Int'", name, in, value)
	}
	return nil
}
