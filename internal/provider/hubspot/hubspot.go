// Package hubspot is the provider HubSpot, with signature version 3, which covers method, address,
// body and time. A delivery is a list of events. Each says that one property of an object changed,
// and never contains the object.
package hubspot

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

// kinds are the objects whose events are named after their kind ("contact.propertyChange").
var kinds = []string{"contact", "company", "deal", "ticket", "product", "line_item"}

const oneChange = "the event contains one change of the object, not the object"

var spec = declared.Spec{
	Name: "hubspot", Title: "HubSpot",
	Schemes: []*signature.Scheme{{
		Name: "hubspot-v3", Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-HubSpot-Signature-v3")}},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-HubSpot-Request-Timestamp"),
			Unit: signature.Milliseconds},
		// HubSpot removes some escapes from the address before it signs it; if there are none both
		// forms are equal.
		Message: signature.MustTemplate("{method}{url|unescaped}{body}{timestamp}"),
		Or:      []signature.Template{signature.MustTemplate("{method}{url}{body}{timestamp}")},
	}},
	Events: declared.Events{
		Split: ".",
		// HubSpot does not promise that event ids are unique.
		Key:        declared.Templates("{json:portalId}:{json:subscriptionId}:{json:eventId}:{json:occurredAt}"),
		Type:       declared.Templates("{json:subscriptionType}", "{json:eventType}"),
		Account:    declared.Templates("{json:portalId}"),
		OccurredAt: declared.TimeAt("json:occurredAt", declared.Milliseconds),
		Omit:       []string{"attemptNumber"},
	},
	Objects: objects(),
	Samples: []provider.Sample{
		declared.LoadSample(files, "contact.creation", "samples/creation.json"),
		declared.LoadSample(files, "contact.propertyChange", "samples/change.json"),
		declared.LoadSample(files, "contact.deletion", "samples/deletion.json"),
		declared.LoadSample(files, "company.propertyChange", "samples/batch.json"),
	},
	Variants: declared.Variants{
		IDs: []string{"0.eventId", "1.eventId", "2.eventId"},
		Times: []declared.Time{*declared.TimeAt("json:0.occurredAt", declared.Milliseconds),
			*declared.TimeAt("json:1.occurredAt", declared.Milliseconds),
			*declared.TimeAt("json:2.occurredAt", declared.Milliseconds)},
		Objects: []string{"0.objectId", "1.objectId", "2.objectId"},
		Counter: "0.propertyValue",
	},
	Docs: provider.Docs{
		Setup: "In the developer account, open the app, then *Webhooks*, and enter the ingest URL as target URL. " +
			"The secret is the app's *client secret* (under *Auth*). Set the same URL under `url`, because HubSpot " +
			"signs it. Several portals send to one app. List the ids of the portals that you accept under " +
			"`accounts`, or leave `accounts` out to accept all.",
		Links: []string{"https://developers.hubspot.com/docs/api/webhooks",
			"https://developers.hubspot.com/docs/api/webhooks/validating-requests"},
		Unconfirmed: []string{"A delivery has at most 100 events. Postern accepts 10,000.",
			"HubSpot distributes retries over a day; we do not know at which times. A retry has another " +
				"`attemptNumber`, which Postern ignores when it compares events."},
	},
}

func objects() []declared.Object {
	id := declared.Templates("{json:objectId}")
	var out []declared.Object
	for _, kind := range kinds {
		out = append(out, declared.Object{Events: []string{kind + ".deletion", kind + ".privacyDeletion"},
			Type: declared.Templates(kind), ID: id, Deletes: []string{"*"}},
			declared.Object{Events: []string{kind + ".*"}, Type: declared.Templates(kind), ID: id, Partial: oneChange})
	}
	return append(out,
		declared.Object{Events: []string{"object.deletion"}, Type: declared.Templates("object-{json:objectTypeId}"),
			ID: id, Deletes: []string{"*"}},
		declared.Object{Events: []string{"object.*"}, Type: declared.Templates("object-{json:objectTypeId}"), ID: id,
			Partial: oneChange},
		declared.Object{Ignored: "events of this type are about no object that is mirrored"})
}
