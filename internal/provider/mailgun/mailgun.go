// Package mailgun reads the webhooks of Mailgun. Their signature stands in the body and covers a time and a token, and nothing of the
// event: whoever saw one delivery can attach any event to its signature while the time is fresh.
package mailgun

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
	Name: "mailgun", Title: "Mailgun",
	Schemes: []*signature.Scheme{{
		Name:      "mailgun-token",
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("json:signature.signature")}},
		Timestamp: &signature.Clock{From: signature.MustRef("json:signature.timestamp")},
		Message:   signature.MustTemplate("{timestamp}{json:signature.token}"),
	}},
	Events: declared.Events{
		Key:      declared.Templates("{json:event-data.id}"),
		Type:     declared.Templates("{json:event-data.event}.{json:event-data.severity}", "{json:event-data.event}"),
		Occurred: declared.At("json:event-data.timestamp", declared.Seconds),
		// A retry may be signed anew.
		Omit: []string{"signature"},
	},
	Objects: []declared.Object{
		// Each event tells what became of one message to one recipient. It is whole in itself, and the latest is where the message stands.
		{
			Events: []string{"accepted", "rejected", "delivered", "failed", "failed.*", "opened", "clicked", "unsubscribed", "complained", "stored"},
			Type:   declared.Templates("message"), State: "event-data",
			ID: declared.Templates("{json:event-data.message.headers.message-id}:{json:event-data.recipient}"),
		},
		{Ignored: "events of this type concern no message"},
	},
	Samples: []provider.Sample{
		declared.Sample(files, "accepted", "samples/accepted.json"),
		declared.Sample(files, "failed.temporary", "samples/failed_temporary.json"),
		declared.Sample(files, "delivered", "samples/delivered.json"),
		declared.Sample(files, "opened", "samples/opened.json"),
		declared.Sample(files, "failed.permanent", "samples/failed_permanent.json"),
	},
	Vary: declared.Vary{
		IDs:     []string{"event-data.id", "signature.token"},
		Times:   []declared.Time{*declared.At("json:event-data.timestamp", declared.Seconds)},
		Objects: []string{"event-data.message.headers.message-id"},
		Counter: "event-data.message.headers.subject",
	},
	Docs: provider.Docs{
		Setup: "In the Control Panel under *Sending*, *Webhooks*, enter the ingest URL for each kind of event; the secret is the *HTTP webhook signing " +
			"key* (*API security*), one for the whole account. **Mailgun's signature covers " + notCovered + "**: whoever saw one delivery, in a log or at a " +
			"proxy, can send any event with it for as long as `tolerance` allows (300 s), under any id. Believe these events no more than you believe " +
			"everyone on the way, end TLS as close to Postern as you can, and do not log bodies. Webhooks made before 2018 and messages that Mailgun " +
			"forwards to you are forms, and are not taken.",
		Key:   "`event-data.id`, which nothing signs, else a digest of the content.",
		Links: []string{"https://documentation.mailgun.com/docs/mailgun/user-manual/events/webhooks"},
		Unsure: []string{
			"That a retry, up to 8 hours later, is signed anew. If it is not, retries later than `tolerance` are refused as stale. Mailgun's documents ask to " +
				"remember tokens and refuse one that was seen before; here a second event under a token is taken, and one under a known id is not.",
			"That `event-data.id` stays the same when an event is sent again.",
			"That an event's time, which has fractions of a second, is never the same for two events of one message.",
		},
	},
}

const notCovered = "a time and a random token, and nothing of the event"
