// Package discord reads Discord's webhook events: what an app is told over HTTP. Discord signs with a key pair, asks for an answer of
// its own to each ping, and sends wrongly signed requests on purpose: an address that does not refuse them with 401 is dropped.
package discord

import (
	"embed"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

// tolerance is longer than the ten minutes in which Discord tries a delivery again, in case it keeps the time of the first attempt.
// Events are named by their content, so that a delivery sent twice within it is one event.
const tolerance = 15 * time.Minute

var spec = declared.Spec{
	Name: "discord", Title: "Discord",
	Schemes: []*signature.Scheme{{
		Name: "discord-ed25519", Method: signature.Ed25519,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Signature-Ed25519")}},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Signature-Timestamp"), Tolerance: tolerance},
		Message:   signature.MustTemplate("{timestamp}{body}"),
	}},
	Events: declared.Events{
		Key:      declared.Templates("{json:id}"), // interactions have one, webhook events have none
		Type:     declared.Templates("{json:event.type}", "interaction.{json:type}"),
		Occurred: declared.At("json:event.timestamp", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"ENTITLEMENT_*"}, Type: declared.Templates("entitlement"), ID: declared.Templates("{json:event.data.id}"), State: "event.data",
			Deletes: []string{"ENTITLEMENT_DELETE"}},
	},
	Greet: greet,
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{Status: http.StatusNoContent}
	},
	Samples: []provider.Sample{
		declared.Sample(files, "APPLICATION_AUTHORIZED", "samples/authorized.json"),
		declared.Sample(files, "ENTITLEMENT_CREATE", "samples/created.json"),
		declared.Sample(files, "ENTITLEMENT_UPDATE", "samples/updated.json"),
		declared.Sample(files, "ENTITLEMENT_DELETE", "samples/deleted.json"),
	},
	Vary: declared.Vary{
		IDs:     []string{"event.data.sku_id", "event.data.user.username"},
		Times:   []declared.Time{*declared.At("json:event.timestamp", declared.RFC3339)},
		Objects: []string{"event.data.id"},
	},
	Docs: provider.Docs{
		Setup: "In the developer portal copy the app's *Public Key* (*General Information*): that is the secret, in hexadecimal. Enter the ingest URL under *Webhooks > Endpoint*; Discord pings it at " +
			"once and sends wrongly signed requests, so the source must be configured before. Every delivery is answered with an empty 204. Interactions (*Interactions Endpoint URL*) " +
			"want an answer that only your own code can give, within 3 s: their ping is answered and they are kept, but do not point them here.",
		Unsure: []string{
			"Whether a delivery that is tried again is signed anew; the signed time may lie 15 minutes from the receipt.",
			"That a retry sends the same bytes. Webhook events are named by their content, so a retry with other bytes would be a second event.",
			"That `ENTITLEMENT_UPDATE` and `ENTITLEMENT_DELETE` carry the whole entitlement, and that its id is never given again; no delete is for good.",
			"The zone of an event's `timestamp`, which names none; it is read as UTC.",
		},
		Links: []string{"https://docs.discord.com/developers/events/webhook-events", "https://docs.discord.com/developers/interactions/receiving-and-responding"},
	},
}

// greet answers pings: of type 0 among webhook events, of type 1 among interactions (a webhook event is of type 1 too, and has an
// event).
func greet(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil || body.Get("event").Kind() == canonical.Object {
		return nil
	}
	kind, ok := body.Get("type").Int64()
	switch {
	case !ok:
		return nil
	case kind == 0:
		return &provider.Reply{Status: http.StatusNoContent, Header: http.Header{"Content-Type": {"application/json"}}}
	case kind == 1:
		return &provider.Reply{ContentType: "application/json", Body: []byte(`{"type":1}`)}
	}
	return nil
}
