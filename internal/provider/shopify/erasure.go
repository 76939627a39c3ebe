package shopify

import (
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Eraser = Shopify{}

// The topics that every app must act on (https://shopify.dev/docs/apps/build/compliance/privacy-law-compliance).
const (
	dataRequest     = "customers/data_request"
	customersRedact = "customers/redact"
	shopRedact      = "shop/redact"
)

// erasureWithin is Shopify's term, from the receipt on.
const erasureWithin = 30 * 24 * time.Hour

// ofOthers are members that a topic's bodies never have, and those of another have. Neither may a customer's delivery, sent again under another topic, clear the shop, nor a
// question for data clear the customer.
var ofOthers = map[string][]string{
	shopRedact:      {"customer", "orders_to_redact", "orders_requested", "data_request"},
	customersRedact: {"orders_requested", "data_request"},
	dataRequest:     {"orders_to_redact"},
}

// ErasureTypes are Shopify's three compliance topics.
func (Shopify) ErasureTypes() []string { return []string{dataRequest, customersRedact, shopRedact} }

// Erasure reads a compliance webhook. The shop is that of the event, which the source allows, and not the body's: it must be the same.
func (Shopify) Erasure(e *provider.Stored) (*provider.Erasure, error) {
	root, err := provider.ReadObject(e.Body)
	if err != nil {
		return nil, err
	}
	if shop := shopName(textOf(root, "shop_domain")); shop != e.Account {
		return nil, dead("the body is about the shop %.100q, and the delivery came for %.100q: the header is not signed, so neither is believed", shop, e.Account)
	}
	for name := range root.Members() {
		if slices.Contains(ofOthers[e.Type], name) {
			return nil, dead("the body has %s, so it is not of the type %s: that is not signed, so neither is believed", name, e.Type)
		}
	}
	w := erasing{&provider.Erasure{Kind: provider.EraseRedact, Within: erasureWithin, Account: e.Account}}
	switch e.Type {
	case shopRedact:
		w.All, w.Proven = true, root.Get("shop_id") != nil && only(root, "shop_id", "shop_domain")
		return w.Erasure, nil
	case dataRequest:
		w.Kind = provider.EraseTell
		w.orders(root.Get("orders_requested"))
	case customersRedact:
		w.orders(root.Get("orders_to_redact"))
		w.Proven = root.Get("orders_to_redact") != nil && only(root, "shop_id", "shop_domain", "customer", "orders_to_redact")
	default:
		return nil, dead("the type %.100q asks for nothing", e.Type)
	}
	w.customer(root.Get("customer"))
	if len(w.Objects)+len(w.Values) == 0 {
		return nil, dead("the body names neither a customer nor an order")
	}
	return w.Erasure, nil
}

// only tells whether a body has no members but some. The topic is not signed, so a body proves its own by having what that topic's have and nothing else: that of
// customers/redact, sent again as shop/redact, does not.
func only(root *canonical.Value, names ...string) bool {
	for name := range root.Members() {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// orders adds orders and what hangs on them.
func (w erasing) orders(list *canonical.Value) {
	for _, id := range list.Elements() {
		if id := idText(id); digits(id) != "" {
			w.Objects = append(w.Objects, [2]string{"order", id})
			w.Values = append(w.Values, provider.PathValue{Path: "$.order_id", Value: id})
		}
	}
}

// customer adds a customer, by id, address and phone wherever topics have them.
func (w erasing) customer(c *canonical.Value) {
	if id := idText(c.Get("id")); digits(id) != "" {
		w.Objects = append(w.Objects, [2]string{"customer", id})
		w.Values = append(w.Values, provider.PathValue{Path: "$.customer.id", Value: id}, provider.PathValue{Path: "$.customer_id", Value: id})
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

// erasing is an Erasure that is being read.
type erasing struct{ *provider.Erasure }
