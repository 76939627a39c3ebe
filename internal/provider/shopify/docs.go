package shopify

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var _ provider.Documented = Shopify{}

// Docs is Shopify for people.
func (Shopify) Docs() provider.Docs {
	return provider.Docs{
		Title: "Shopify",
		Setup: "For an app the secret is its *client secret*; for webhooks made in the shop's admin (Settings, Notifications, Webhooks) it is the one shown there. Name the shops whose " +
			"deliveries are taken under `account` or `accounts`: the shop's name comes unsigned. Do not subscribe with `include_fields` on a secret that deletes come under.",
		Signature: classic.scheme.Describe() + " Events of the newer family come under `Shopify-Hmac-Sha256` and are taken too.",
		Key:       "The header `X-Shopify-Webhook-Id`, which a retry keeps; by `key: event-id` the header `X-Shopify-Event-Id`, shared by all deliveries of one action. Both come unsigned.",
		Objects:   "The body of most topics is the whole object, ordered by its `updated_at`. A delete is believed only from a body of a delete's shape, since the topic comes unsigned, and is for good.",
		Links:     []string{"https://shopify.dev/docs/apps/build/webhooks", "https://shopify.dev/docs/apps/build/webhooks/subscribe/https", "https://shopify.dev/docs/api/admin-graphql", "https://shopify.dev/docs/api/admin-rest"},
		Unsure: []string{"When `updated_at` moves for changes of what is embedded (an order's customer, a product's stock).",
			"Whether bodies are rendered when the event happens or when it is delivered; no rank is taken from them."},
	}
}

// Schemes are how Shopify signs: the Events family, and webhooks.
func (Shopify) Schemes() []*signature.Scheme {
	return []*signature.Scheme{&events.scheme, &classic.scheme}
}
