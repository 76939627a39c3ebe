// Package shopify implements the provider Shopify: its webhooks, its Events (a newer family with
// other headers), and its Admin API. Shopify signs only the body; topic, shop and ids are in
// unsigned headers, which anyone with a captured delivery can change. So the source must name its
// shops, and a delete is accepted only from a body of a delete's form. The table in types.go says
// what each topic means. The package makes no calls and stores nothing.
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

// family is one of Shopify's two sets of headers
// (https://shopify.dev/docs/apps/build/webhooks/subscribe/https,
// https://shopify.dev/docs/apps/build/events/delivery-structure).
type family struct {
	scheme  signature.Scheme
	topic   string
	action  string
	shop    string
	version string
	// ids are the headers that can be an event's key, by the source's setting.
	ids         map[string]string
	triggeredAt string
}

// The choices of a source's key. A delivery keeps its webhook id when it is sent again. All
// deliveries of one action have the same event id, even if their topics differ. So with the event
// id as key, all but the first of them are dropped.
const (
	webhookID = "webhook-id"
	eventID   = "event-id"
)

func bodyHMAC(name, header string) signature.Scheme {
	return signature.Scheme{
		Name: name, Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{{Kind: signature.Header, Name: header}}},
		Message:   signature.MustTemplate("{body}"),
	}
}

var (
	classic = family{
		scheme:      bodyHMAC("shopify-webhooks", "X-Shopify-Hmac-Sha256"),
		topic:       "X-Shopify-Topic",
		shop:        "X-Shopify-Shop-Domain",
		version:     "X-Shopify-Api-Version",
		ids:         map[string]string{webhookID: "X-Shopify-Webhook-Id", eventID: "X-Shopify-Event-Id"},
		triggeredAt: "X-Shopify-Triggered-At",
	}
	events = family{
		scheme:      bodyHMAC("shopify-events", "Shopify-Hmac-Sha256"),
		topic:       "Shopify-Topic",
		action:      "Shopify-Action",
		shop:        "Shopify-Shop-Domain",
		version:     "Shopify-Api-Version",
		ids:         map[string]string{webhookID: "Shopify-Webhook-Id", eventID: "Shopify-Event-Id"},
		triggeredAt: "Shopify-Triggered-At",
	}
)

// familyOf returns the family of a delivery by its signature header. It checks the newer one first,
// as Shopify's SDK does.
func familyOf(d *provider.Delivery) *family {
	if d.Header.Get(events.scheme.Signature.In[0].Name) != "" {
		return &events
	}
	return &classic
}

// Name is "shopify".
func (Shopify) Name() string { return "shopify" }

// Check requires a secret and the allowed shops, because the shop's name is not signed.
func (Shopify) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &classic.scheme); err != nil {
		return err
	}
	if src.Account == "" && len(src.Accounts) == 0 {
		return errors.New("account: name the shop (my-shop.myshopify.com), or list several under accounts ('*' for " +
			"any); Shopify does not sign the shop's name")
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

// Headers returns the request headers that are stored with an event.
func (Shopify) Headers() []string {
	out := []string{"Content-Type", "User-Agent", "X-Shopify-Name", "X-Shopify-Sub-Topic", "Shopify-Handle",
		"Shopify-Resource-Id"}
	for _, f := range []*family{&classic, &events} {
		out = append(out, f.scheme.Signature.In[0].Name, f.topic, f.shop, f.version, f.ids[webhookID], f.ids[eventID],
			f.triggeredAt)
	}
	return append(out, events.action)
}

// Verify verifies the sender by the HMAC of the body. Shopify signs no time, so none is checked.
// While a client secret is being replaced, Shopify signs with the old one until it is revoked, so
// both must be configured.
func (Shopify) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return provider.VerifySchemes(src, d, &familyOf(d).scheme)
}
