package shopify

import (
	_ "embed" // for api_docs.md
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// apiText are facts about the API.
//
//go:embed api_docs.md
var apiText string

var _ provider.APIDocumented = Shopify{}

// notRead are the mirrored types that REST does not read, or reads by values that the mirror does
// not have, with the reason for each.
var notRead = map[string]string{
	"order_transaction": "it is read below its order, which neither the mirror nor GraphQL finds by the " +
		"transaction's number",
	"cart":                  "it has no Admin API",
	"checkout":              "it is read by its token, and the mirror has its number",
	"bulk_operation":        onlyGraphQL,
	"company":               onlyGraphQL,
	"company_contact":       onlyGraphQL,
	"company_location":      onlyGraphQL,
	"return":                onlyGraphQL,
	"subscription_contract": onlyGraphQL,
	"domain":                "its webhooks are not about objects of the Admin API",
}

const onlyGraphQL = "only GraphQL has it, in another format than its webhooks"

// APIDocs describes what Postern reads of Shopify's API.
func (s Shopify) APIDocs() provider.APIDocs {
	d := provider.APIDocs{Paths: "Paths of REST are below `/admin/api/VERSION`.", NotRead: notRead, Text: apiText}
	for _, name := range s.ObjectTypes() {
		g, ok := gets[name]
		if !ok {
			continue
		}
		t := provider.ReadableType{Type: name, Object: "REST `" + g.path + "`"}
		if segment := below[name]; segment != "" {
			t.Object = "GraphQL for its order, then REST `orders/{order}/" + segment + "/{id}.json`"
		}
		t.List, t.Changed = describeList(name)
		d.Types = append(d.Types, t)
	}
	return d
}

// describeList returns where all objects of a type are listed, and where the changed ones.
func describeList(name string) (list, changed string) {
	r, byREST := resources[name]
	c, byGraphQL := connections[name]
	switch {
	case byREST && r.inside != "":
		return "REST `" + r.plural + ".json`, whole, in their orders", "the same, of changed orders"
	case byREST:
		return "REST `" + r.plural + ".json`, whole", "the same, by `updated_at`"
	case name == inventoryLevel:
		return "GraphQL `locations { inventoryLevels }`", "the same, by `updated_at`"
	case byGraphQL && c.changed:
		return "GraphQL `" + c.field + "`", "the same, by `updated_at`"
	case byGraphQL:
		return "GraphQL `" + c.field + "`" + including(c.more), ""
	}
	return "", ""
}

// including describes the arguments of a list.
func including(arguments string) string {
	if arguments == "" {
		return ""
	}
	return " (`" + strings.TrimPrefix(arguments, ", ") + "`)"
}
