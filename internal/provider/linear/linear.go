// Package linear is the provider Linear. The signed time is in the body and may be a minute old.
// The id of a delivery is in an unsigned header. An update contains the old values of the changed
// fields.
package linear

import (
	"embed"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

var spec = declared.Spec{
	Name: "linear", Title: "Linear",
	Schemes: []*signature.Scheme{{
		Name:      "linear-signature",
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Linear-Signature")}},
		Timestamp: &signature.Clock{From: signature.MustRef("json:webhookTimestamp"), Unit: signature.Milliseconds,
			Tolerance: time.Minute},
		Message: signature.MustTemplate("{body}"),
	}},
	Events: declared.Events{
		Key:        declared.Templates("{header:Linear-Delivery}"),
		Type:       declared.Templates("{json:type}.{json:action}", "{json:type}", "{header:Linear-Event}"),
		Account:    declared.Templates("{json:organizationId}"),
		OccurredAt: declared.TimeAt("json:createdAt", declared.RFC3339),
		Omit:       []string{"webhookTimestamp"},
	},
	Objects: []declared.Object{
		{Events: []string{"AuditEntry.*"}, Ignored: "an audit entry describes what a user did, not an object that is " +
			"mirrored"},
		{
			Events: []string{"*.create", "*.update", "*.remove", "*.restore"}, Type: declared.Templates("{json:type}"),
			ID:    declared.Templates("{json:data.id}"),
			State: "data", Before: "updatedFrom", Deletes: []string{"*.remove"},
			// It is the time of the last meaningful change.
			Version: &declared.Version{From: signature.MustRef("json:data.updatedAt"), Unit: declared.RFC3339,
				MayNotAdvance: true},
		},
		{Ignored: "events of this type are about no object that is mirrored"},
	},
	SetHeaders: func(_ *provider.Source, d *provider.Delivery, s provider.Sample) {
		kind, _, _ := strings.Cut(s.Type, ".")
		d.Header.Set("Linear-Event", kind)
	},
	Samples: []provider.Sample{
		declared.LoadSample(files, "Issue.create", "samples/issue_create.json"),
		declared.LoadSample(files, "Issue.update", "samples/issue_update.json"),
		declared.LoadSample(files, "Issue.remove", "samples/issue_remove.json"),
		declared.LoadSample(files, "Comment.create", "samples/comment_create.json"),
		declared.LoadSample(files, "Project.update", "samples/project_update.json"),
	},
	Variants: declared.Variants{
		Times: []declared.Time{*declared.TimeAt("json:createdAt", declared.RFC3339),
			*declared.TimeAt("json:data.updatedAt", declared.RFC3339)},
		Objects: []string{"data.id"},
		Counter: "data.description",
	},
	Docs: provider.Docs{
		Setup: "As a workspace admin, open *Settings*, *API*, *Webhooks*, and create a webhook with the ingest " +
			"URL. The secret is its *signing secret* (`lin_wh_...`). Workspaces are distinguished by " +
			"`organizationId`. List those that you accept under `accounts`, or leave `accounts` out to accept all. " +
			"The signed time may be 60 s old, as Linear documents. Set `tolerance` for more.",
		Key: "`Linear-Delivery`, or else a digest of the content. That header is not signed: for a minute, anyone " +
			"who captured a delivery can send it again as another event. It then has the same content for the same " +
			"object, so nothing changes.",
		Links: []string{"https://linear.app/developers/webhooks"},
		Unconfirmed: []string{
			"Every delivery has `Linear-Delivery`, and a retry has the same value.",
			"A retry (after 1 minute, 1 hour, 6 hours) has a new `webhookTimestamp`. If it keeps the time of the " +
				"first attempt, Postern rejects retries as stale: then set `tolerance: 8h`.",
			"`updatedAt` advances with every change. Linear calls it the time of the last meaningful change. " +
				"Postern does not rely on this: it assumes that a state can be from any time between `updatedAt` " +
				"and the receipt.",
			"A removal advances the object's `updatedAt`. If it does not, it is ambiguous whether the object was " +
				"removed, and the object needs a refetch. A removed issue can be restored, so no removal is final.",
		},
	},
}
