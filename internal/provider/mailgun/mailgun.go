// Package mailgun is the provider Mailgun. Its signature is in the body and covers a time and a
// token, but nothing of the event: anyone with one delivery can attach any event to its signature
// while the time is valid.
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
		Key:        declared.Templates("{json:event-data.id}"),
		Type:       declared.Templates("{json:event-data.event}.{json:event-data.severity}", "{json:event-data.event}"),
		OccurredAt: declared.TimeAt("json:event-data.timestamp", declared.Seconds),
		// A retry may be signed again.
		Omit: []string{"signature"},
	},
	Objects: []declared.Object{
		// Each event describes the result of one message for one recipient. It is complete, and the
		// latest one is the current state.
		{
			Events: []string{"accepted", "rejected", "delivered", "failed", "failed.*", "opened", "clicked",
				"unsubscribed", "complained", "stored"},
			Type: declared.Templates("message"), State: "event-data",
			ID: declared.Templates("{json:event-data.message.headers.message-id}:{json:event-data.recipient}"),
		},
		{Ignored: "events of this type are about no message"},
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "accepted", "samples/accepted.json"),
		declared.LoadSample(files, "failed.temporary", "samples/failed_temporary.json"),
		declared.LoadSample(files, "delivered", "samples/delivered.json"),
		declared.LoadSample(files, "opened", "samples/opened.json"),
		declared.LoadSample(files, "failed.permanent", "samples/failed_permanent.json"),
	},
	Variants: declared.Variants{
		IDs:     []string{"event-data.id", "signature.token"},
		Times:   []declared.Time{*declared.TimeAt("json:event-data.timestamp", declared.Seconds)},
		Objects: []string{"event-data.message.headers.message-id"},
		Counter: "event-data.message.headers.subject",
	},
	Docs: provider.Docs{
		Setup: "In the Control Panel, under *Sending*, *Webhooks*, enter the ingest URL for each kind of event. " +
			"The secret is the *HTTP webhook signing key* (*API security*), one for the whole account. **Mailgun's " +
			"signature covers " + notCovered +
			"**: anyone who saw one delivery, in a log or at a proxy, can send any event with its signature, under " +
			"any id, for as long as `tolerance` allows (300 s). Trust these events only as much as you trust " +
			"everyone between Mailgun and Postern. Terminate TLS as close to Postern as you can, and do not log " +
			"bodies. Webhooks that were created before 2018, and messages that Mailgun forwards to you, are forms. " +
			"Postern does not accept them.",
		Key:   "`event-data.id`, which is not signed, or else a digest of the content.",
		Links: []string{"https://documentation.mailgun.com/docs/mailgun/user-manual/events/webhooks"},
		Unconfirmed: []string{
			"A retry, up to 8 hours later, is signed again. If it is not, Postern rejects retries later than " +
				"`tolerance` as stale. Mailgun's documents ask receivers to remember tokens and to reject a token " +
				"that was used before. Postern accepts a second event with the same token, but not a second event " +
				"with the same id.",
			"`event-data.id` stays the same when an event is sent again.",
			"Two events of one message never have the same time. Times have fractions of a second.",
		},
	},
}

const notCovered = "a time and a random token, but not the event"
