// Package adyen is the provider Adyen, for its standard webhooks. Every notification of a delivery
// has a signature of its own in the body, over eight of its fields only. Adyen expects the response
// "[accepted]".
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
		Message: signature.MustTemplate(
			"[{json:pspReference}]:[{json:originalReference}]:[{json:merchantAccountCode}]:" +
				"[{json:merchantReference}]:" +
				"[{json:amount.value}]:[{json:amount.currency}]:[{json:eventCode}]:[{json:success}]"),
	}},
	SignedItems: true,
	Events: declared.Events{
		Split: "notificationItems", Item: "NotificationRequestItem",
		Key:        declared.Templates("{json:pspReference}:{json:eventCode}:{json:success}"),
		Type:       declared.Templates("{json:eventCode}"),
		Account:    declared.Templates("{json:merchantAccountCode}"),
		OccurredAt: declared.TimeAt("json:eventDate", declared.RFC3339),
		Omit:       []string{"additionalData.hmacSignature"}, // differs between secrets
	},
	// A notification describes one step of a payment and is complete. The latest of each kind is
	// mirrored for each reference.
	Objects: []declared.Object{
		{Events: []string{provider.UnknownType}, Ignored: "the notification has no event code"},
		{Type: declared.Templates("{type|lower}"), ID: declared.Templates("{json:pspReference}"), State: "."},
	},
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{ContentType: "text/plain", Body: []byte("[accepted]")}
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "AUTHORISATION", "samples/authorisation.json"),
		declared.LoadSample(files, "CAPTURE", "samples/capture.json"),
		declared.LoadSample(files, "REFUND", "samples/batch.json"),
	},
	Variants: declared.Variants{
		IDs: []string{path("0.pspReference"), path("1.pspReference"), path("2.pspReference")},
		Times: []declared.Time{*declared.TimeAt("json:"+path("0.eventDate"), declared.RFC3339),
			*declared.TimeAt("json:"+path("1.eventDate"), declared.RFC3339),
			*declared.TimeAt("json:"+path("2.eventDate"), declared.RFC3339)},
		Counter: path("0.amount.value"),
	},
	Docs: provider.Docs{
		Setup: "In the Customer Area, under Developers, Webhooks, add a *Standard webhook* with the ingest URL and " +
			"method JSON. Under *Security*, generate the HMAC key (hexadecimal) and use it as the secret. List the " +
			"merchant accounts that you accept under `accounts`, or leave `accounts` out to accept all. The " +
			"response to a stored delivery is `[accepted]`. Adyen signs only reference, amount, merchant, event " +
			"code and success. Anyone who captured a delivery can change the rest (date, reason, " +
			"`additionalData`). Postern then stores it as a conflict with the first delivery. Adyen joins the " +
			"signed fields by colons, so a value with a colon can be read as two values: do not use colons in your " +
			"merchant references.",
		Key: "`pspReference`, `eventCode` and `success` of each notification, because Adyen sends no event id. A " +
			"delivery may contain many events.",
		Links: []string{"https://docs.adyen.com/development-resources/webhooks/",
			"https://docs.adyen.com/development-resources/webhooks/verify-hmac-signatures/"},
		Unconfirmed: []string{
			"Adyen still requires the body `[accepted]`. Any 2xx response may be enough.",
		},
	},
}

// path returns the path of a notification's field in a delivery ("0.pspReference").
func path(field string) string {
	return "notificationItems." + field[:1] + ".NotificationRequestItem" + field[1:]
}
