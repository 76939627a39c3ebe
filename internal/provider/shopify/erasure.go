package shopify

import (
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Eraser = Shopify{}

// The topics that every app must act on
// (https://shopify.dev/docs/apps/build/compliance/privacy-law-compliance).
const (
	dataRequest     = "customers/data_request"
	customersRedact = "customers/redact"
	shopRedact      = "shop/redact"
)

// erasureWithin is Shopify's time limit from the receipt.
const erasureWithin = 30 * 24 * time.Hour

// foreignMembers are, by topic, members that only bodies of another topic have. A body with one of
// them was sent again under a wrong topic. So a customer's delivery cannot erase the shop, and a
// data request cannot erase the customer.
var foreignMembers = map[string][]string{
	shopRedact:      {"customer", "orders_to_redact", "orders_requested", "data_request"},
	customersRedact: {"orders_requested", "data_request"},
	dataRequest:     {"orders_to_redact"},
}

// ErasureTypes returns Shopify's three compliance topics.
func (Shopify) ErasureTypes() []string { return []string{dataRequest, customersRedact, shopRedact} }

// Erasure reads a compliance webhook. The shop is that of the event, which the source allows, and
// the body must contain the same shop.
func (Shopify) Erasure(e *provider.StoredEvent) (*provider.Erasure, error) {
	root, err := provider.ReadObject(e.Body)
	if err != nil {
		return nil, err
	}
	if shop := shopName(textOf(root, "shop_domain")); shop != e.Account {
		return nil, newDead("the body is about the shop %.100q, but the delivery is for %.100q: the header is not "+
			"signed, so the delivery is not trusted", shop, e.Account)
	}
	for name := range root.Members() {
		if slices.Contains(foreignMembers[e.Type], name) {
			return nil, newDead("the body has %s, so it is not of the type %s: the type is not signed, so the "+
				"delivery is not trusted", name, e.Type)
		}
	}
	w := erasureReader{&provider.Erasure{Kind: provider.EraseRedact, Within: erasureWithin, Account: e.Account}}
	switch e.Type {
	case shopRedact:
		w.AllEvents, w.FullySigned = true, root.Get("shop_id") != nil && hasOnly(root, "shop_id", "shop_domain")
		return w.Erasure, nil
	case dataRequest:
		w.Kind = provider.EraseReport
		w.orders(root.Get("orders_requested"))
	case customersRedact:
		w.orders(root.Get("orders_to_redact"))
		w.FullySigned = root.Get("orders_to_redact") != nil && hasOnly(root, "shop_id", "shop_domain", "customer",
			"orders_to_redact")
	default:
		return nil, newDead("the type %.100q is no erasure request", e.Type)
	}
	w.customer(root.Get("customer"))
	if len(w.Objects)+len(w.Values) == 0 {
		return nil, newDead("the body contains neither a customer nor an order")
	}
	return w.Erasure, nil
}

// hasOnly reports whether a body has no other members than these. The topic is not signed, so a
// body must have the members of its topic and no others: a body of customers/redact, sent again as
// shop/redact, does not.
func hasOnly(root *canonical.Value, names ...string) bool {
	for name := range root.Members() {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// orders adds orders and the objects that refer to them.
func (w erasureReader) orders(list *canonical.Value) {
	for _, id := range list.Elements() {
		if id := idText(id); digits(id) != "" {
			w.Objects = append(w.Objects, [2]string{"order", id})
			w.Values = append(w.Values, provider.PathValue{Path: "$.order_id", Value: id})
		}
	}
}

// customer adds a customer, by id, email and phone, at the paths that topics use.
func (w erasureReader) customer(c *canonical.Value) {
	if id := idText(c.Get("id")); digits(id) != "" {
		w.Objects = append(w.Objects, [2]string{"customer", id})
		w.Values = append(w.Values, provider.PathValue{Path: "$.customer.id", Value: id},
			provider.PathValue{Path: "$.customer_id", Value: id})
	}
	for _, field := range []string{"email", "phone"} {
		value := strings.TrimSpace(textOf(c, field))
		for _, path := range []string{"$.", "$.customer.", "$.contact_"} {
			if value != "" {
				w.Values = append(w.Values, provider.PathValue{Path: path + field, Value: value})
			}
		}
	}
}

// erasureReader builds an Erasure.
type erasureReader struct{ *provider.Erasure }
