// Package adyen reads Adyen's standard webhooks. Every notification of a delivery carries a signature of its own inside the body,
// over eight of its fields and nothing else; and Adyen wants "[accepted]" for an answer.
package adyen

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var spec = declared.Spec{
	Name: "adyen", Title: "Adyen",
	Schemes: []*signature.Scheme{{
		Name: "adyen-item", Encoding: signature.Base64, Key: signature.Key{Form: signature.KeyHex},
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("json:additionalData.hmacSignature")}},
		Message: signature.MustTemplate("[{json:pspReference}]:[{json:originalReference}]:[{json:merchantAccountCode}]:[{json:merchantReference}]:" +
			"[{json:amount.value}]:[{json:amount.currency}]:[{json:eventCode}]:[{json:success}]"),
	}},
	EachItem: true,
	Events: declared.Events{
		Split: "notificationItems", Item: "NotificationRequestItem",
		Key:      declared.Templates("{json:pspReference}:{json:eventCode}:{json:success}"),
		Type:     declared.Templates("{json:eventCode}"),
		Account:  declared.Templates("{json:merchantAccountCode}"),
		Occurred: declared.At("json:eventDate", declared.RFC3339),
		Omit:     []string{"additionalData.hmacSignature"}, // another secret, another signature of the same event
	},
	// A notification tells one step of a payment. What it tells is whole in itself: the latest of each kind is kept per reference.
	Objects: []declared.Object{
		{Events: []string{provider.UnknownType}, Ignored: "the notification names no event code"},
		{Type: declared.Templates("{type|lower}"), ID: declared.Templates("{json:pspReference}"), State: "."},
	},
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{ContentType: "text/plain", Body: []byte("[accepted]")}
	},
	Samples: []provider.Sample{
		declared.Sample(files, "AUTHORISATION", "samples/authorisation.json"),
		declared.Sample(files, "CAPTURE", "samples/capture.json"),
		declared.Sample(files, "REFUND", "samples/batch.json"),
	},
	Vary: declared.Vary{
		IDs: []string{path("0.pspReference"), path("1.pspReference"), path("2.pspReference")},
		Times: []declared.Time{*declared.At("json:"+path("0.eventDate"), declared.RFC3339), *declared.At("json:"+path("1.eventDate"), declared.RFC3339),
			*declared.At("json:"+path("2.eventDate"), declared.RFC3339)},
		Counter: path("0.amount.value"),
	},
	Docs: provider.Docs{
		Setup: "In the Customer Area under Developers, Webhooks, add a *Standard webhook* with the ingest URL, method JSON; under *Security* generate the HMAC key (hexadecimal) and give it as the secret. " +
			"List your merchant accounts under `accounts`, or leave it out for all. The answer to a stored delivery is `[accepted]`.",
		Key:   "`pspReference`, `eventCode` and `success` of each notification; Adyen gives no event id. A delivery holds many events.",
		Links: []string{"https://docs.adyen.com/development-resources/webhooks/", "https://docs.adyen.com/development-resources/webhooks/verify-hmac-signatures/"},
		Unsure: []string{
			"Only reference, amount, merchant, event code and success are signed. Anything else (date, reason, `additionalData`) can be changed by whoever captured a delivery; it then is kept as a conflict of the first.",
			"The signed fields are joined by colons, so a value that holds a colon can be read as two; do not put colons into your merchant references.",
			"That Adyen still asks for the body `[accepted]`; any 2xx may do.",
		},
	},
}

// path is where a notification's field stands in a delivery ("0.pspReference").
func path(field string) string {
	return "notificationItems." + field[:1] + ".NotificationRequestItem" + field[1:]
}
