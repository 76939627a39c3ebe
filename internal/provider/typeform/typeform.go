// Package typeform is the provider Typeform: one event for each response to a form. Responses do
// not change.
package typeform

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
	Name: "typeform", Title: "Typeform",
	Schemes: []*signature.Scheme{{
		Name: "typeform-sha256", Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Typeform-Signature")},
			Prefix: "sha256="},
		Message: signature.MustTemplate("{body}"),
	}},
	Events: declared.Events{
		Key:        declared.Templates("{json:event_id}"),
		Type:       declared.Templates("{json:event_type}"),
		OccurredAt: declared.TimeAt("json:form_response.submitted_at", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"form_response"}, Type: declared.Templates("response"),
			ID: declared.Templates("{json:form_response.token}"), State: "form_response"},
		{Events: []string{"form_response_partial"}, Ignored: "the response is not finished"},
		{Ignored: "events of this type are about no object that is mirrored"},
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "form_response", "samples/response.json"),
		declared.LoadSample(files, "form_response_partial", "samples/partial.json"),
	},
	Variants: declared.Variants{
		IDs:     []string{"event_id"},
		Times:   []declared.Time{*declared.TimeAt("json:form_response.submitted_at", declared.RFC3339)},
		Objects: []string{"form_response.token"},
		Counter: "form_response.answers.0.text",
	},
	Docs: provider.Docs{
		Setup: "In the form, under Connect, Webhooks, add the ingest URL. Choose a secret under *Edit*, and set " +
			"the same secret here. Without a secret, Typeform signs nothing, and Postern rejects every delivery.",
		Links: []string{"https://www.typeform.com/developers/webhooks/",
			"https://www.typeform.com/developers/webhooks/secure-your-webhooks/"},
		Unconfirmed: []string{"The signature is base64 after `sha256=`. We read this in implementations, not in " +
			"Typeform's own documents.",
			"We know nothing certain about `form_response_partial`. It is not mirrored.",
			"A retry keeps its `event_id`."},
	},
}
