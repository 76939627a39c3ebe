package stripe

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var _ provider.Documented = Stripe{}

// Docs describes Stripe to people.
func (Stripe) Docs() provider.Docs {
	return provider.Docs{
		Title: "Stripe",
		Setup: "In the Dashboard under Developers, Webhooks (or Workbench, Webhooks) add an endpoint with the ingest " +
			"URL and choose the events; the secret is its " +
			"*Signing secret* (`whsec_...`). For local trials `stripe listen --print-secret` gives one.",
		Signature: scheme.Describe() + " The key is the whole secret, with its `whsec_`. Signatures under other keys " +
			"(`v0`) do not count.",
		Key: "The event's `id`. The fingerprint is the canonical body without `pending_webhooks`, which differs from " +
			"delivery to delivery; for an id-only event it consists of the event's name and its object." +
			" The same event in another version of the API, as an endpoint pinned to that one gets it, is a duplicate.",
		Objects: "Snapshot events carry the whole object, frozen with the event, and are ordered by `updated` where " +
			"the type has it, else by the event's `created`; within a second by the " +
			"order of the life cycle where that is documented, and by `previous_attributes`. Id-only events (API v2) " +
			"carry no state, so the object needs a refetch. Previews of invoices are not mirrored.",
		Links: []string{"https://docs.stripe.com/webhooks", "https://docs.stripe.com/webhooks/signature"},
		Unconfirmed: []string{"Whether `created` of events under a test clock is simulated time.",
			"How long Stripe waits for a response; it is not documented.",
			"Whether ids of deleted coupons and products can be reused; Postern assumes that they can."},
	}
}

// Schemes returns Stripe's signature scheme.
func (Stripe) Schemes() []*signature.Scheme { return []*signature.Scheme{&scheme} }
