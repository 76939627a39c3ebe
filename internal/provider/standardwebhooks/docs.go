package standardwebhooks

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "This provider is for every sender that follows Standard Webhooks or uses Svix: Svix, OpenAI, Resend, " +
		"Clerk, Supabase, Render, Brex, Replicate, incident.io, Etsy, Loops, Increase, Stytch, Vanta, Polar and " +
		"many more. Enter the ingest URL at the sender, and copy the signing secret that it shows, with its prefix " +
		"`whsec_` (Supabase: `v1,whsec_`). Postern tries a secret without that prefix as it is and as base64. If a " +
		"sender signs with a key pair, the secret is its public key, with its prefix `whpk_`. Without the prefix, " +
		"Postern would use it as a shared secret, which everybody knows. The content of events differs between " +
		"senders. Describe the objects under `objects:` of the source.",
	Signature: "HMAC-SHA-256 over `{id}.{timestamp}.{body}`, as base64 under `v1` in the header " +
		"`Webhook-Signature` or `Svix-Signature`, or Ed25519 under `v1a`. There may be several signatures, for " +
		"example while a secret is replaced; one must be valid. Postern takes id and time from the headers of the " +
		"same family. The time may differ from the time of receipt by 300 s.",
	Key: "`{header:Webhook-Id}`, or else `{header:Svix-Id}`. Both are signed, and stay the same when a delivery is " +
		"sent again. If both are present, they must be equal.",
	Objects: "None, unless the source's `objects:` describe some. For example, those of Clerk are `{events: " +
		"[\"user.*\"], type: user, id: \"{json:data.id}\", state: data, version: {from: json:data.updated_at, " +
		"unit: ms, may_not_advance: true}}`.",
	Unconfirmed: []string{
		"Each of the senders above uses one of these families of headers and forms of secrets. For Svix, OpenAI, " +
			"Resend and Clerk, we read this in their own programs.",
		"Svix gives both families of headers the same id. Postern rejects deliveries with two different ids.",
	},
	Links: []string{"https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		"https://docs.svix.com/receiving/verifying-payloads/how-manual"},
}
