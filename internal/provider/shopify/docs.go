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
		Setup: "For an app the secret is its *client secret*; for webhooks made in the shop's admin (Settings, " +
			"Notifications, Webhooks) it is the one shown there. Name the shops whose " +
			"deliveries are accepted under `account` or `accounts`: the shop's name is not signed. Do not subscribe " +
			"with `include_fields` on a secret that is also used for deletes.",
		Signature: classic.scheme.Describe() + " Events of the newer family are signed in `Shopify-Hmac-Sha256` and " +
			"are " +
			"accepted too.",
		Key: "The header `X-Shopify-Webhook-Id`, which a retry keeps; by `key: event-id` the header " +
			"`X-Shopify-Event-Id`, shared by all deliveries of one action. Both are unsigned.",
		Objects: "The body of most topics is the whole object, ordered by its `updated_at`. A delete is accepted " +
			"only from a body of a delete's form, because the topic is unsigned, and is permanent.",
		Links: []string{"https://shopify.dev/docs/apps/build/webhooks",
			"https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
			"https://shopify.dev/docs/api/admin-graphql", "https://shopify.dev/docs/api/admin-rest"},
		Unconfirmed: []string{"When `updated_at` moves for changes of what is embedded (an order's customer, a " +
			"product's " +
			"stock).",
			"Whether bodies are rendered when the event happens or when it is delivered; no rank is taken from them."},
	}
}

// Schemes returns Shopify's signature schemes: of the Events family, and of webhooks.
func (Shopify) Schemes() []*signature.Scheme {
	return []*signature.Scheme{&events.scheme, &classic.scheme}
}
