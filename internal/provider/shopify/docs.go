package shopify

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var _ provider.Documented = Shopify{}

// Docs describes Shopify to people.
func (Shopify) Docs() provider.Docs {
	return provider.Docs{
		Title: "Shopify",
		Setup: "For an app, the secret is its *client secret*. For webhooks that were created in the shop's admin " +
			"(Settings, Notifications, Webhooks), it is the secret that is shown there. List the shops whose " +
			"deliveries you accept under `account` or `accounts`, because the shop's name is not signed. Do not " +
			"subscribe with `include_fields` on a secret that is also used for deletes.",
		Signature: classic.scheme.Describe() + " Postern also accepts events of the newer family, which are signed " +
			"in `Shopify-Hmac-Sha256`.",
		Key: "The header `X-Shopify-Webhook-Id`; a retry has the same value. With `key: event-id`, the header " +
			"`X-Shopify-Event-Id`, which all deliveries of one action share. Neither header is signed.",
		Objects: "The body of most topics is the whole object, ordered by its `updated_at`. The topic is not " +
			"signed, so Postern accepts a delete only if the body has the form of a delete. A delete is permanent.",
		Links: []string{"https://shopify.dev/docs/apps/build/webhooks",
			"https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
			"https://shopify.dev/docs/api/admin-graphql", "https://shopify.dev/docs/api/admin-rest"},
		Unconfirmed: []string{"`updated_at` may not advance after changes of embedded objects (an order's " +
			"customer, a product's stock).",
			"A body may be rendered when the event happens or when it is delivered. Postern takes no rank from " +
				"bodies."},
	}
}

// Schemes returns Shopify's signature schemes: of the Events family, and of webhooks.
func (Shopify) Schemes() []*signature.Scheme {
	return []*signature.Scheme{&events.scheme, &classic.scheme}
}
