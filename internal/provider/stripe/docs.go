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
		Setup: "In the Dashboard, under Developers, Webhooks (or Workbench, Webhooks), add an endpoint with the " +
			"ingest URL and choose the events. The secret is its *Signing secret* (`whsec_...`). For local tests, " +
			"`stripe listen --print-secret` prints a secret.",
		Signature: scheme.Describe() + " The key is the whole secret, with its `whsec_`. Postern ignores " +
			"signatures under other keys (`v0`).",
		Key: "The event's `id`. The fingerprint is the canonical body without `pending_webhooks`, which differs " +
			"between deliveries. The fingerprint of an id-only event consists of the event's name and its object. An " +
			"endpoint with another version of the API gets the same event in that version, which is a duplicate.",
		Objects: "Snapshot events carry the whole object as it was at the time of the event. They are ordered by " +
			"`updated` if the type has it, or else by the event's `created`. Within one second, they are ordered " +
			"by the object's life cycle, if Stripe documents it, and by `previous_attributes`. Id-only events (API " +
			"v2) carry no state, so the object needs a refetch. Previews of invoices are not mirrored.",
		Links: []string{"https://docs.stripe.com/webhooks", "https://docs.stripe.com/webhooks/signature"},
		Unconfirmed: []string{"`created` of events under a test clock may be simulated time.",
			"Stripe does not document how long it waits for a response.",
			"Ids of deleted coupons and products may be reused. Postern assumes that they are."},
	}
}

// Schemes returns Stripe's signature scheme.
func (Stripe) Schemes() []*signature.Scheme { return []*signature.Scheme{&scheme} }
