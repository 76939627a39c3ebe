// Package calendly is the provider Calendly. Its deliveries have no event id, so they are
// identified by their content.
package calendly

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
	Name: "calendly", Title: "Calendly",
	Schemes: []*signature.Scheme{{
		Name: "calendly-v1",
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Calendly-Webhook-Signature")},
			Separator: ",", KeySeparator: "=", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("item:t")},
		Message:   signature.MustTemplate("{timestamp}.{body}"),
	}},
	Events: declared.Events{
		Type:       declared.Templates("{json:event}"),
		OccurredAt: declared.TimeAt("json:created_at", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"invitee.*"}, Type: declared.Templates("invitee"),
			ID: declared.Templates("{json:payload.uri}"), State: "payload",
			Version: &declared.Version{From: signature.MustRef("json:payload.updated_at"), Unit: declared.RFC3339,
				MayNotAdvance: true}},
		{Events: []string{"invitee_no_show.deleted"}, Type: declared.Templates("invitee_no_show"),
			ID: declared.Templates("{json:payload.uri}"), State: "payload",
			Deletes: []string{"*"}},
		{Events: []string{"invitee_no_show.created"}, Type: declared.Templates("invitee_no_show"),
			ID: declared.Templates("{json:payload.uri}"), State: "payload"},
		{Events: []string{"routing_form_submission.created"}, Type: declared.Templates("routing_form_submission"),
			ID: declared.Templates("{json:payload.uri}"), State: "payload"},
		{Ignored: "events of this type are about no object that is mirrored"},
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "invitee.created", "samples/created.json"),
		declared.LoadSample(files, "invitee.canceled", "samples/canceled.json"),
		declared.LoadSample(files, "routing_form_submission.created", "samples/submission.json"),
	},
	Variants: declared.Variants{
		Times: []declared.Time{*declared.TimeAt("json:created_at", declared.RFC3339),
			*declared.TimeAt("json:payload.updated_at", declared.RFC3339)},
		Objects: []string{"payload.uri"},
		Counter: "payload.name",
	},
	Docs: provider.Docs{
		Setup: "Create a webhook subscription through Calendly's API (`POST /webhook_subscriptions`), with the " +
			"ingest URL and a `signing_key` of your choice. That key is the secret.",
		Links: []string{"https://developer.calendly.com/api-docs/overview-of-webhooks",
			"https://developer.calendly.com/api-docs/webhook-signatures"},
		Unconfirmed: []string{
			"A retry sends the same bytes. Events are identified by their content, so a retry with other bytes " +
				"would be a second event. The order of versions makes it harmless.",
			"`updated_at` of an invitee advances with every change. Postern does not rely on this: it assumes that " +
				"a state can be from any time between `updated_at` and the receipt.",
			"The tolerance may be 300 s. Some examples use 180 s.",
		},
	},
}
