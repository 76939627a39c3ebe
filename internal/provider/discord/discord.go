// Package discord is the provider Discord, for the webhook events of an app. Discord signs with a
// key pair and expects its own response to each ping. It sends wrongly signed requests on purpose,
// and drops an address that does not reject them with 401.
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

// tolerance is longer than the ten minutes in which Discord retries a delivery, in case a retry
// keeps the time of the first attempt. Events are identified by their content, so a delivery sent
// twice within it is one event.
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
		Key:        declared.Templates("{json:id}"), // interactions have one, webhook events have none
		Type:       declared.Templates("{json:event.type}", "interaction.{json:type}"),
		OccurredAt: declared.TimeAt("json:event.timestamp", declared.RFC3339),
	},
	Objects: []declared.Object{
		{Events: []string{"ENTITLEMENT_*"}, Type: declared.Templates("entitlement"),
			ID: declared.Templates("{json:event.data.id}"), State: "event.data",
			Deletes: []string{"ENTITLEMENT_DELETE"}},
	},
	Handshake: handshake,
	Acknowledge: func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{Status: http.StatusNoContent}
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "APPLICATION_AUTHORIZED", "samples/authorized.json"),
		declared.LoadSample(files, "ENTITLEMENT_CREATE", "samples/created.json"),
		declared.LoadSample(files, "ENTITLEMENT_UPDATE", "samples/updated.json"),
		declared.LoadSample(files, "ENTITLEMENT_DELETE", "samples/deleted.json"),
	},
	Variants: declared.Variants{
		IDs:     []string{"event.data.sku_id", "event.data.user.username"},
		Times:   []declared.Time{*declared.TimeAt("json:event.timestamp", declared.RFC3339)},
		Objects: []string{"event.data.id"},
	},
	Docs: provider.Docs{
		Setup: "In the developer portal, copy the app's *Public Key* (*General Information*). It is the secret, in " +
			"hexadecimal. Configure the source before you enter the ingest URL under *Webhooks > Endpoint*, " +
			"because Discord immediately sends a ping and wrongly signed requests. Every delivery gets an empty " +
			"204. Do not enter the ingest URL as *Interactions Endpoint URL*. Postern responds to the ping of " +
			"interactions and stores them, but they need a response within 3 s that only your own code can give.",
		Unconfirmed: []string{
			"A delivery that is retried is signed again. The signed time may differ by 15 minutes from the " +
				"receipt.",
			"A retry sends the same bytes. Webhook events are identified by their content, so a retry with other " +
				"bytes would be a second event.",
			"`ENTITLEMENT_UPDATE` and `ENTITLEMENT_DELETE` contain the whole entitlement, and its id is never " +
				"reused. Postern does not rely on the latter: no delete is final.",
			"An event's `timestamp` is in UTC. It names no time zone.",
		},
		Links: []string{"https://docs.discord.com/developers/events/webhook-events",
			"https://docs.discord.com/developers/interactions/receiving-and-responding"},
	},
}

// handshake responds to pings: of type 0 for webhook events, of type 1 for interactions (a webhook
// event has type 1 too, and contains an event).
func handshake(_ *provider.Source, d *provider.Delivery) *provider.Reply {
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
