// Package intercom reads Intercom's webhooks. They are signed with SHA-1, without a time, by the secret of the app; objects tell when
// they changed as seconds in some topics and as a date in others; and what is deleted is only named.
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
		Key:      declared.Templates("{json:id}"),
		Type:     declared.Templates("{json:topic}"),
		Account:  declared.Templates("{json:app_id}"),
		Occurred: declared.At("json:created_at", declared.Auto),
		Omit:     []string{"delivery_status", "delivery_attempts", "delivered_at", "first_sent_at"},
	},
	Objects: []declared.Object{
		{Events: []string{"ping"}, Ignored: "a ping tries the address"},
		{Events: []string{"admin.logged_in", "admin.logged_out", "admin.activity_log_event.*", "content_stat.*", "event.*"},
			Ignored: "the event tells what somebody did, no object that is mirrored"},
		{Events: []string{"contact.deleted", "company.deleted", "conversation.deleted", "ticket.deleted", "user.deleted"},
			Type: itemType, ID: itemID, State: "data.item", Version: changed, Deletes: []string{"*"}, Final: true, FinalBare: true},
		// Of its parts a conversation carries those that the event is about; which those are is no state of the conversation.
		{Events: []string{"conversation.*"}, Type: itemType, ID: itemID, State: "data.item", Version: changed, Volatile: []string{"conversation_parts"}},
		{Type: itemType, ID: itemID, State: "data.item", Version: changed},
	},
	Challenge: challenge,
	Samples: []provider.Sample{
		declared.Sample(files, "contact.created", "samples/contact_created.json"),
		declared.Sample(files, "contact.email.updated", "samples/contact_email_updated.json"),
		declared.Sample(files, "contact.deleted", "samples/contact_deleted.json"),
		declared.Sample(files, "conversation.user.created", "samples/conversation_user_created.json"),
		declared.Sample(files, "conversation.admin.replied", "samples/conversation_admin_replied.json"),
		declared.Sample(files, "company.created", "samples/company_created.json"),
	},
	Vary: declared.Vary{
		IDs:     []string{"id"},
		Times:   []declared.Time{*declared.At("json:created_at", declared.Seconds), *declared.At("json:data.item.updated_at", declared.Seconds)},
		Objects: []string{"data.item.id"},
		Counter: "data.item.name",
	},
	Docs: provider.Docs{
		Setup: "In the Developer Hub open the app, *Webhooks*, and enter the ingest URL as endpoint; Intercom tries it with a `HEAD` request, which is " +
			"answered. Choose the topics. The secret is the app's *client secret* (*Basic information*). Workspaces that installed the app are told apart by " +
			"`app_id`; list those you take under `accounts`, or leave it out for all.",
		Links: []string{"https://developers.intercom.com/docs/webhooks", "https://developers.intercom.com/docs/webhooks/setting-up-webhooks",
			"https://developers.intercom.com/docs/webhooks/webhook-notifications"},
		Unsure: []string{
			"The form of the signature: HMAC with SHA-1 of the body under the client secret, after `sha1=`. It is read from other programs that take " +
				"Intercom's webhooks. No time is signed, so a captured delivery can be sent again; it is the same event, since its id is signed.",
			"That a retry keeps the notification's `id`. Only its counters of deliveries are left out when the two are compared.",
			"Of `updated_at` both spellings are read, seconds and a date. That it moves with every change; the receipt bounds what it may have missed.",
			"That ids of deleted contacts, companies, conversations and tickets are never given again; after a delete without `updated_at` they stay deleted.",
			"That a conversation's event carries all of the conversation but its parts. The mirror shows the parts of the last event.",
		},
	},
}

var (
	itemType = declared.Templates("{json:data.item.type}")
	itemID   = declared.Templates("{json:data.item.id}")
	changed  = &declared.Version{From: signature.MustRef("json:data.item.updated_at"), Unit: declared.Auto, Still: true}
)

// challenge answers the request by which Intercom tries an address before it takes it.
func challenge(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	if d.Method != http.MethodHead {
		return nil
	}
	return &provider.Reply{}
}
