// Package shopify reads Shopify's webhooks, and its Events, which come under a header family of their own. Shopify signs
// the body and nothing else: topic, shop and ids travel in headers that anyone who captured a delivery can change. So
// the source names the shops it takes, a delete is believed only from a body that is a delete's, and what each topic
// means is one table, in types.go.
package shopify

import (
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Shopify is the provider.
type Shopify struct{}

var _ provider.Provider = Shopify{}

// family is one of the two sets of headers that Shopify sends (https://shopify.dev/docs/apps/build/webhooks/subscribe/https,
// https://shopify.dev/docs/apps/build/events/delivery-structure).
type family struct {
	scheme  signature.Scheme
	topic   string
	action  string
	shop    string
	version string
	// ids are the headers that can name an event, by the source's choice of key.
	ids       map[string]string
	triggered string
}

// The choices of a source's key. A delivery keeps its webhook id when it is sent again; an event id is shared by all
// deliveries of one action, of several topics too, so as a key it drops all but the first of them.
const (
	webhookID = "webhook-id"
	eventID   = "event-id"
)

func bodyHMAC(name, header string) signature.Scheme {
	return signature.Scheme{
		Name: name, Encoding: signature.Base64, Signature: signature.Layout{In: []signature.Ref{{Kind: signature.Header, Name: header}}},
		Message: signature.MustTemplate("{body}"),
	}
}

var (
	classic = family{
		scheme:    bodyHMAC("shopify-webhooks", "X-Shopify-Hmac-Sha256"),
		topic:     "X-Shopify-Topic",
		shop:      "X-Shopify-Shop-Domain",
		version:   "X-Shopify-Api-Version",
		ids:       map[string]string{webhookID: "X-Shopify-Webhook-Id", eventID: "X-Shopify-Event-Id"},
		triggered: "X-Shopify-Triggered-At",
	}
	events = family{
		scheme:    bodyHMAC("shopify-events", "Shopify-Hmac-Sha256"),
		topic:     "Shopify-Topic",
		action:    "Shopify-Action",
		shop:      "Shopify-Shop-Domain",
		version:   "Shopify-Api-Version",
		ids:       map[string]string{webhookID: "Shopify-Webhook-Id", eventID: "Shopify-Event-Id"},
		triggered: "Shopify-Triggered-At",
	}
)

// familyOf tells the family of a delivery by which signature it has; the newer one is looked for first, as Shopify's SDK does.
func familyOf(d *provider.Delivery) *family {
	if d.Header.Get(events.scheme.Signature.In[0].Name) != "" {
		return &events
	}
	return &classic
}

// Name is "shopify".
func (Shopify) Name() string { return "shopify" }

// Check wants a secret and the shops whose deliveries are taken: the shop's name comes unsigned.
func (Shopify) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &classic.scheme); err != nil {
		return err
	}
	if src.Account == "" && len(src.Accounts) == 0 {
		return errors.New("account: name the shop (my-shop.myshopify.com), or list several under accounts ('*' for any); Shopify does not sign the shop's name")
	}
	for _, shop := range append([]string{src.Account}, src.Accounts...) {
		if shop != "" && shop != "*" && shopName(shop) == "" {
			return fmt.Errorf("account: %q is not a shop's domain; write it like my-shop.myshopify.com", shop)
		}
	}
	switch src.Key {
	case "", webhookID, eventID:
		return nil
	}
	return fmt.Errorf("key: %q is not known; choose %s (the default) or %s", src.Key, webhookID, eventID)
}

// Headers are the request headers kept with an event.
func (Shopify) Headers() []string {
	out := []string{"Content-Type", "User-Agent", "X-Shopify-Name", "X-Shopify-Sub-Topic", "Shopify-Handle", "Shopify-Resource-Id"}
	for _, f := range []*family{&classic, &events} {
		out = append(out, f.scheme.Signature.In[0].Name, f.topic, f.shop, f.version, f.ids[webhookID], f.ids[eventID], f.triggered)
	}
	return append(out, events.action)
}

// Verify proves the sender by the HMAC of the body. Shopify signs no time, so none is judged; while a client secret is
// being replaced Shopify signs with the old one until it is revoked, so both must be configured meanwhile.
func (Shopify) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return provider.Prove(src, d, &familyOf(d).scheme)
}
