// Package intercom is the provider Intercom. Deliveries are signed with SHA-1 by the app's secret,
// without a time. The time of an object's change is in seconds in some topics and a date in others.
// Deletes only name their object.
package intercom

import (
	"embed"
	"net/http"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var spec = declared.Spec{
	Name: "intercom", Title: "Intercom",
	Schemes: []*signature.Scheme{{
		Name: "intercom-sha1", Digest: signature.SHA1,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Hub-Signature")}, Prefix: "sha1="},
		Message:   signature.MustTemplate("{body}"),
	}},
	Events: declared.Events{
		Key:        declared.Templates("{json:id}"),
		Type:       declared.Templates("{json:topic}"),
		Account:    declared.Templates("{json:app_id}"),
		OccurredAt: declared.TimeAt("json:created_at", declared.Auto),
		Omit:       []string{"delivery_status", "delivery_attempts", "delivered_at", "first_sent_at"},
	},
	Objects: []declared.Object{
		{Events: []string{"ping"}, Ignored: "a ping tests the address"},
		{Events: []string{"admin.logged_in", "admin.logged_out", "admin.activity_log_event.*", "content_stat.*",
			"event.*"},
			Ignored: "the event describes what a user did, not an object that is mirrored"},
		{Events: []string{"contact.deleted", "company.deleted", "conversation.deleted", "ticket.deleted",
			"user.deleted"},
			Type: itemType, ID: itemID, State: "data.item", Version: changed, Deletes: []string{"*"}, Final: true,
			FinalWithoutVersion: true},
		// A conversation contains only the parts that the event is about, so its parts are not
		// compared.
		{Events: []string{"conversation.*"}, Type: itemType, ID: itemID, State: "data.item", Version: changed,
			IgnoredPaths: []string{"conversation_parts"}},
		{Type: itemType, ID: itemID, State: "data.item", Version: changed},
	},
	Challenge: challenge,
	Samples: []provider.Sample{
		declared.LoadSample(files, "contact.created", "samples/contact_created.json"),
		declared.LoadSample(files, "contact.email.updated", "samples/contact_email_updated.json"),
		declared.LoadSample(files, "contact.deleted", "samples/contact_deleted.json"),
		declared.LoadSample(files, "conversation.user.created", "samples/conversation_user_created.json"),
		declared.LoadSample(files, "conversation.admin.replied", "samples/conversation_admin_replied.json"),
		declared.LoadSample(files, "company.created", "samples/company_created.json"),
	},
	Variants: declared.Variants{
		IDs: []string{"id"},
		Times: []declared.Time{*declared.TimeAt("json:created_at", declared.Seconds),
			*declared.TimeAt("json:data.item.updated_at", declared.Seconds)},
		Objects: []string{"data.item.id"},
		Counter: "data.item.name",
	},
	Docs: provider.Docs{
		Setup: "In the Developer Hub, open the app, then *Webhooks*, and enter the ingest URL as endpoint. " +
			"Intercom tests it with a `HEAD` request, to which Postern responds. Choose the topics. The secret is " +
			"the app's *client secret* (*Basic information*). Workspaces that installed the app are distinguished " +
			"by `app_id`. List those that you accept under `accounts`, or leave `accounts` out to accept all.",
		Links: []string{"https://developers.intercom.com/docs/webhooks",
			"https://developers.intercom.com/docs/webhooks/setting-up-webhooks",
			"https://developers.intercom.com/docs/webhooks/webhook-notifications"},
		Unconfirmed: []string{
			"The signature is an HMAC with SHA-1 of the body under the client secret, after `sha1=`. We read this " +
				"in other programs that accept Intercom's webhooks. No time is signed, so a captured delivery can " +
				"be sent again. It is the same event, because its id is signed.",
			"A retry keeps the notification's `id`. When Postern compares the two, it ignores only the counters of " +
				"deliveries.",
			"`updated_at` advances with every change. Postern does not rely on this: it assumes that a state can " +
				"be from any time between `updated_at` and the receipt. It reads `updated_at` in both formats, " +
				"seconds and a date.",
			"Ids of deleted contacts, companies, conversations and tickets are never reused. After a delete " +
				"without `updated_at`, they stay deleted.",
			"A conversation's event carries the whole conversation, but not all of its parts. The mirror shows the " +
				"parts of the last event.",
		},
	},
}

var (
	itemType = declared.Templates("{json:data.item.type}")
	itemID   = declared.Templates("{json:data.item.id}")
	changed  = &declared.Version{From: signature.MustRef("json:data.item.updated_at"), Unit: declared.Auto,
		MayNotAdvance: true}
)

// challenge responds to the request with which Intercom tests an address before it accepts it.
func challenge(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	if d.Method != http.MethodHead {
		return nil
	}
	return &provider.Reply{}
}
