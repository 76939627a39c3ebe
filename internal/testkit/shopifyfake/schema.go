package shopifyfake

import (
	"fmt"
	"slices"
	"strings"
)

// schemaField is a field of a type, with its own type and the types of its arguments.
type schemaField struct {
	typeName string
	args     map[string]string
}

var pagingArgs = map[string]string{"first": "Int", "after": "String", "query": "String"}

func withArgs(args map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for name, of := range args {
		out[name] = of
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// schema is the part of Shopify's schema that the fake supports, in Version. Package test/oracles
// compares it with Shopify's. All other types are scalars and enumerations.
var schema = map[string]map[string]schemaField{
	"QueryRoot": {
		"collections": {typeName: "CollectionConnection",
			args: withArgs(pagingArgs, "sortKey", "CollectionSortKeys")},
		"bulkOperation":          {typeName: "BulkOperation", args: map[string]string{"id": "ID!"}},
		"currentAppInstallation": {typeName: "AppInstallation"},
		"customers": {typeName: "CustomerConnection",
			args: withArgs(pagingArgs, "sortKey", "CustomerSortKeys")},
		"draftOrders": {typeName: "DraftOrderConnection",
			args: withArgs(pagingArgs, "sortKey", "DraftOrderSortKeys")},
		"fulfillment": {typeName: "Fulfillment", args: map[string]string{"id": "ID!"}},
		"giftCards": {typeName: "GiftCardConnection",
			args: withArgs(pagingArgs, "sortKey", "GiftCardSortKeys")},
		"inventoryItems": {typeName: "InventoryItemConnection", args: pagingArgs},
		"locations": {typeName: "LocationConnection", args: withArgs(pagingArgs, "sortKey", "LocationSortKeys",
			"includeInactive", "Boolean", "includeLegacy", "Boolean")},
		"orders":   {typeName: "OrderConnection", args: withArgs(pagingArgs, "sortKey", "OrderSortKeys")},
		"products": {typeName: "ProductConnection", args: withArgs(pagingArgs, "sortKey", "ProductSortKeys")},
		"refund":   {typeName: "Refund", args: map[string]string{"id": "ID!"}},
		"themes": {typeName: "OnlineStoreThemeConnection", args: map[string]string{"first": "Int",
			"after": "String"}},
	},
	"Mutation": {"bulkOperationRunQuery": {typeName: "BulkOperationRunQueryPayload",
		args: map[string]string{"query": "String!", "groupObjects": "Boolean!"}}},
	"BulkOperationRunQueryPayload": {"bulkOperation": {typeName: "BulkOperation"},
		"userErrors": {typeName: "BulkOperationUserError"}},
	"BulkOperationUserError": {"code": {}, "field": {}, "message": {}},
	"BulkOperation": {"id": {}, "type": {}, "status": {}, "errorCode": {}, "createdAt": {}, "completedAt": {},
		"objectCount": {}, "rootObjectCount": {}, "fileSize": {}, "url": {}, "partialDataUrl": {},
		"query": {}},
	"AppInstallation": {"accessScopes": {typeName: "AccessScope"}},
	"AccessScope":     {"handle": {}},
	"Fulfillment":     {"order": {typeName: "Order"}},
	"GiftCard":        {"id": {}, "updatedAt": {}},
	"Refund":          {"order": {typeName: "Order"}},
	"InventoryLevel": {"id": {}, "updatedAt": {}, "item": {typeName: "InventoryItem"},
		"location": {typeName: "Location"}},
	"Location": {"id": {}, "updatedAt": {}, "legacyResourceId": {},
		"inventoryLevels": {typeName: "InventoryLevelConnection", args: withArgs(pagingArgs, "includeInactive",
			"Boolean")}},
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

// check validates a query against the schema.
func (d document) check(values map[string]any) error {
	usedVariables := map[string]bool{}
	if err := d.checkFields(d.root, d.fields, usedVariables); err != nil {
		return err
	}
	for name, of := range d.variables {
		value, given := values[name]
		switch {
		case !usedVariables[name]:
			return fmt.Errorf("variable $%s is declared but not used", name)
		case strings.HasSuffix(of, "!") && value == nil:
			return fmt.Errorf("variable $%s of type %s was provided invalid value", name, of)
		case given && !valueFits(strings.TrimSuffix(of, "!"), value):
			return fmt.Errorf("variable $%s of type %s was provided invalid value", name, of)
		}
	}
	for name := range values {
		if d.variables[name] == "" {
			// Shopify ignores it; the fake reports the mistake
			return fmt.Errorf("variable $%s is given and not declared", name)
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

func (d document) checkFields(of string, fields []selection, usedVariables map[string]bool) error {
	for _, s := range fields {
		f, ok := fieldOf(of, s.name)
		if !ok {
			return fmt.Errorf("field '%s' doesn't exist on type '%s'", s.name, of)
		}
		if (len(s.sub) > 0) != (f.typeName != "") {
			return fmt.Errorf("field '%s' has selections where it must have none, or none where it must have some",
				s.name)
		}
		for name, value := range s.args {
			if err := d.checkArgument(f, s.name, name, value, usedVariables); err != nil {
				return err
			}
		}
		for name, t := range f.args {
			if s.args[name] == "" && (strings.HasSuffix(t, "!") || name == "first" && !d.isBulk) {
				return fmt.Errorf("field '%s' is missing the argument: %s", s.name, name)
			}
		}
		if err := d.checkFields(f.typeName, s.sub, usedVariables); err != nil {
			return err
		}
	}
	return nil
}

// fieldOf returns a field of a type. A connection depends on the type of its nodes.
func fieldOf(of, name string) (schemaField, bool) {
	if node, ok := strings.CutSuffix(of, "Connection"); ok {
		switch name {
		case "nodes":
			return schemaField{typeName: node}, true
		case "edges":
			return schemaField{typeName: node + "Edge"}, true
		case "pageInfo":
			return schemaField{typeName: "PageInfo"}, true
		}
		return schemaField{}, false
	}
	if node, ok := strings.CutSuffix(of, "Edge"); ok && name == "node" {
		return schemaField{typeName: node}, true
	}
	f, ok := schema[of][name]
	return f, ok
}

func (d document) checkArgument(f schemaField, in, name, value string, usedVariables map[string]bool) error {
	want, ok := f.args[name]
	if !ok {
		return fmt.Errorf("field '%s' doesn't accept argument '%s'", in, name)
	}
	if variable, ok := strings.CutPrefix(value, "$"); ok {
		usedVariables[variable] = true
		if of := d.variables[variable]; of != want && strings.TrimSuffix(of, "!") != want {
			return fmt.Errorf("type mismatch on variable $%s and argument %s (%s / %s)", variable, name, of, want)
		}
		return nil
	}
	if values := enums[strings.TrimSuffix(want, "!")]; values != nil && !slices.Contains(values, value) {
		return fmt.Errorf("argument '%s' on Field '%s' has an invalid value (%s). Expected type '%s'", name, in, value,
			want)
	}
	if want == "Int" && strings.Trim(value, "0123456789") != "" {
		return fmt.Errorf("argument '%s' on Field '%s' has an invalid value (%s). Expected type 'Int'", name, in, value)
	}
	return nil
}
