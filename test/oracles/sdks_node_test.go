package oracles_test

import (
	"net/url"
	"strconv"
	"time"

	"crypto/sha256"
	"encoding/hex"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// How senders write a time.
func milliseconds(at time.Time) string { return strconv.FormatInt(at.UnixMilli(), 10) }
func rfc3339(at time.Time) string      { return at.UTC().Format("2006-01-02T15:04:05Z") }
func untimed(time.Time) string         { return "" }

// nodeSDKs are the SDKs for Node. They take bodies as text.
func nodeSDKs() []*oracle {
	all := []*oracle{
		{
			sdk: "@adyen/api-library, payments", source: preset("adyen"), keys: hexKeys, body: adyenBodies,
			bodyOpen: true,
			tamper:   tamperedPayment,
			verify:   verifiedBy("adyen"),
		},
		{
			sdk: "@adyen/api-library, platform", source: declared("adyen-platform"), keys: hexKeys, body: objects,
			headers: canonical("HmacSignature"),
			differs: []difference{looseBase64, severalLines},
			verify:  verifiedBy("adyen-platform"),
		},
		{
			sdk: "@easypost/api", source: declared("easypost"), keys: foreignKeys, body: objects,
			headers: canonical("X-Hmac-Signature"),
			differs: []difference{upperHex},
			verify:  verifiedBy("easypost"),
		},
		{
			sdk: "@hubspot/api-client", source: preset("hubspot"), keys: textKeys, body: objects,
			headers: canonical("X-HubSpot-Signature-v3", "X-HubSpot-Request-Timestamp"), url: true,
			queries: []string{"", "tenant=7", "a=1&b=2"},
			ours:    five, theirs: &window{5 * time.Minute, forever},
			sign: signedBy("hubspot", milliseconds), verify: verifiedBy("hubspot"),
		},
		{
			sdk: "@linear/sdk", source: preset("linear"), keys: textKeys, headers: canonical("Linear-Signature"),
			ours: &window{time.Minute, time.Minute}, theirs: &window{time.Minute, time.Minute},
			body:    objectsWith(func(*rapid.T) map[string]any { return map[string]any{"webhookTimestamp": 0} }),
			differs: []difference{upperHex},
			verify:  verifiedBy("linear"),
		},
		{
			sdk: "@notionhq/client", source: declared("notion"), keys: textKeys, body: objects,
			headers: canonical("X-Notion-Signature"),
			sign:    signedBy("notion", untimed), verify: verifiedBy("notion"),
		},
		{
			sdk: "@octokit/webhooks-methods", source: preset("github"), keys: textKeys, body: objects,
			headers: canonical("X-Hub-Signature-256"),
			sign:    signedBy("octokit", untimed), differs: []difference{upperHex},
			verify: verifiedBy("octokit"),
		},
		{
			sdk: "@sanity/webhook", source: declared("sanity"), keys: textKeys, body: objects,
			headers: canonical("Sanity-Webhook-Signature"),
			ours:    five, theirs: &window{forever, forever},
			sign: signedBy("sanity", milliseconds), differs: []difference{skippedItem(",", "v2=x"), padding},
			verify: verifiedBy("sanity"),
		},
		{
			sdk: "@shopify/shopify-api", source: preset("shopify"), keys: textKeys, body: objects,
			headers: canonical("X-Shopify-Hmac-Sha256"),
			verify:  verifiedBy("shopify"),
		},
		{
			sdk: "@shopify/shopify-api, Events", source: preset("shopify"), keys: textKeys, body: objects,
			headers: canonical("Shopify-Hmac-Sha256"), dress: asEvents,
			verify: verifiedBy("shopify"),
		},
		{
			sdk: "@workos-inc/node", source: declared("workos"), keys: textKeys, body: objects,
			headers: canonical("WorkOS-Signature"),
			ours:    five, theirs: &window{3 * time.Minute, forever},
			because: "WorkOS signs each attempt again, so five minutes, as for all others, are no less safe than " +
				"three; the source can set a tolerance",
			sign: signedBy("workos", milliseconds), differs: []difference{severalLines, upperHex, anyKey,
				rewrittenBody, skippedItem(",", "v2=x")},
			verify: verifiedBy("workos"),
		},
		{
			sdk: "box-node-sdk", source: declared("box"), keys: textKeys, body: objects,
			headers: canonical("BOX-SIGNATURE-PRIMARY", "BOX-DELIVERY-TIMESTAMP"),
			dress: func(d *provider.Delivery) {
				d.Header.Set("Box-Signature-Version", "1")
				d.Header.Set("Box-Signature-Algorithm", "HmacSHA256")
			},
			ours: &window{10 * time.Minute, 10 * time.Minute}, theirs: &window{10 * time.Minute, 0},
			because: "the SDK refuses any time that lies ahead of the receiver's clock, so that a clock a second " +
				"slow refuses what is right",
			sign: signedBy("box", rfc3339), differs: []difference{looseBase64, severalLines},
			verify: verifiedBy("box"),
		},
		{
			sdk: "coinbase-commerce-node", source: declared("coinbase-commerce"), keys: textKeys, body: objects,
			headers: canonical("X-CC-Webhook-Signature"),
			sign:    signedBy("coinbase", untimed), differs: []difference{upperHex},
			verify: verifiedBy("coinbase"),
		},
		{
			sdk: "discord-interactions", source: preset("discord"), keys: ed25519Keys, body: raw,
			headers: canonical("X-Signature-Ed25519", "X-Signature-Timestamp"),
			ours:    &window{15 * time.Minute, 15 * time.Minute}, theirs: &window{forever, forever},
			differs: []difference{anyPairs},
			verify:  verifiedBy("discord"),
		},
		{
			sdk: "gocardless-nodejs", source: declared("gocardless"), keys: textKeys, body: raw,
			headers: canonical("Webhook-Signature"),
			differs: []difference{looseHex, severalLines},
			verify:  verifiedBy("gocardless"),
		},
		{
			sdk: "razorpay", source: declared("razorpay"), keys: textKeys, body: objects,
			headers: canonical("X-Razorpay-Signature"),
			differs: []difference{upperHex},
			verify:  verifiedBy("razorpay"),
		},
		{
			sdk: "square", source: preset("square"), keys: textKeys, body: objects,
			headers: canonical("X-Square-HmacSha256-Signature"),
			url:     true, queries: []string{"", "tenant=7", "a=1&b=2"}, verify: verifiedBy("square"),
		},
		{
			sdk: "twilio, forms", source: preset("twilio"), keys: textKeys, body: repeated, same: sameForm,
			headers: canonical("X-Twilio-Signature"),
			url:     true, queries: []string{"", "tenant=7", "a=1&b=2"},
			sign: signedBy("twilio-form", untimed), differs: []difference{rewrittenQuery},
			verify: verifiedBy("twilio-form"),
		},
		{
			sdk: "twilio, JSON", source: preset("twilio"), keys: textKeys, body: objects,
			headers: canonical("X-Twilio-Signature"), url: true,
			sign: func(secret, base string, d *provider.Delivery, at time.Time) error {
				sum := sha256.Sum256(d.Body)
				d.Query = url.Values{"bodySHA256": {hex.EncodeToString(sum[:])}}.Encode()
				return signedBy("twilio-json", untimed)(secret, withQuery(base, d.Query), d, at)
			},
			verify: verifiedBy("twilio-json"),
		},
	}
	for _, o := range all {
		o.node = true
	}
	return all
}

// asEvents gives a delivery of Shopify's that was signed here the headers of its newer family,
// which signs alike.
func asEvents(d *provider.Delivery) {
	for _, name := range []string{"Hmac-Sha256", "Topic", "Shop-Domain", "Api-Version", "Webhook-Id", "Event-Id",
		"Triggered-At"} {
		d.Header["Shopify-"+name] = d.Header["X-Shopify-"+name]
		d.Header.Del("X-Shopify-" + name)
	}
}

// adyenBodies are deliveries of some payments.
var adyenBodies = rapid.Custom(func(t *rapid.T) string {
	text := rapid.StringMatching(`[A-Za-z0-9 _-]{0,16}`)
	item := rapid.Custom(func(t *rapid.T) map[string]any {
		out := map[string]any{
			"additionalData": map[string]any{"shopper": words.Draw(t, "data")},
			"eventDate":      "2026-01-01T12:00:00+01:00", "reason": words.Draw(t, "reason"),
			"amount": map[string]any{"currency": rapid.SampledFrom([]string{"EUR", "USD"}).Draw(t, "currency"),
				"value": rapid.Int64Range(0, 1<<50).Draw(t, "value")},
		}
		for _, name := range []string{"pspReference", "merchantAccountCode", "merchantReference"} {
			out[name] = text.Draw(t, name)
		}
		if rapid.Bool().Draw(t, "has an original") {
			out["originalReference"] = text.Draw(t, "original")
		}
		out["eventCode"] = rapid.SampledFrom([]string{"AUTHORISATION", "CAPTURE", "REFUND"}).Draw(t, "code")
		out["success"] = rapid.SampledFrom([]string{"true", "false"}).Draw(t, "success")
		return map[string]any{"NotificationRequestItem": out}
	})
	return compact(map[string]any{"live": "false", "notificationItems": rapid.SliceOfN(item, 1, 3).Draw(t, "items")})
})
