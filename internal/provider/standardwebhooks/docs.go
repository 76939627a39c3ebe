package standardwebhooks

import "github.com/postern-gateway/postern/internal/provider"

var docs = provider.Docs{
	Setup: "For every sender that follows Standard Webhooks or is served by Svix: Svix, OpenAI, Resend, Clerk, " +
		"Supabase, Render, Brex, Replicate, incident.io, Etsy, Loops, Increase, " +
		"Stytch, Vanta, Polar and many more. Enter the ingest URL at the sender and copy the signing secret that it " +
		"shows, with its `whsec_` (or Supabase's `v1,whsec_`). A secret " +
		"without that prefix is tried as it is and as base64. For a sender that signs with a key pair the secret " +
		"is its public key, with its `whpk_`: without the prefix it would be " +
		"used as a shared secret, which everybody knows. The content of events differs between senders; " +
		"name the objects under `objects:` of the source.",
	Signature: "HMAC-SHA-256 over `{id}.{timestamp}.{body}`, as base64 under `v1` in the header `Webhook-Signature` " +
		"or `Svix-Signature`, or Ed25519 under `v1a`. There may be several signatures, " +
		"for example while a secret is changed; one must be right. Id and time are those in the headers of the " +
		"same family. The time may differ by 300 s from the receipt.",
	Key: "`{header:Webhook-Id}`, else `{header:Svix-Id}`; both are signed, stay the same when a delivery is sent " +
		"again, and must be equal if both are present.",
	Objects: "None, until the source's `objects:` name some. Those of Clerk, for example: `{events: [\"user.*\"], " +
		"type: user, id: \"{json:data.id}\", state: data, " +
		"version: {from: json:data.updated_at, unit: ms, still: true}}`.",
	Unconfirmed: []string{
		"Which headers and which form of secret each of the senders above uses; for Svix, OpenAI, Resend and Clerk " +
			"this was read in their own programs.",
		"That Svix gives both families of headers the same id. Deliveries with two ids are rejected.",
	},
	Links: []string{"https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
		"https://docs.svix.com/receiving/verifying-payloads/how-manual"},
}
