// Package linear reads Linear's webhooks. The time that is signed stands in the body and may be a minute old; the id of a delivery
// stands in a header that nothing signs; and an update tells the old values of what changed.
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
		Timestamp: &signature.Clock{From: signature.MustRef("json:webhookTimestamp"), Unit: signature.Milliseconds, Tolerance: time.Minute},
		Message:   signature.MustTemplate("{body}"),
	}},
	Events: declared.Events{
		Key:      declared.Templates("{header:Linear-Delivery}"),
		Type:     declared.Templates("{json:type}.{json:action}", "{json:type}", "{header:Linear-Event}"),
		Account:  declared.Templates("{json:organizationId}"),
		Occurred: declared.At("json:createdAt", declared.RFC3339),
		Omit:     []string{"webhookTimestamp"},
	},
	Objects: []declared.Object{
		{Events: []string{"AuditEntry.*"}, Ignored: "an audit entry tells what somebody did, no object that is mirrored"},
		{
			Events: []string{"*.create", "*.update", "*.remove", "*.restore"}, Type: declared.Templates("{json:type}"), ID: declared.Templates("{json:data.id}"),
			State: "data", Before: "updatedFrom", Deletes: []string{"*.remove"},
			// It is the time when something meaningful changed.
			Version: &declared.Version{From: signature.MustRef("json:data.updatedAt"), Unit: declared.RFC3339, Still: true},
		},
		{Ignored: "events of this type concern no object that is mirrored"},
	},
	Dress: func(_ *provider.Source, d *provider.Delivery, s provider.Sample) {
		kind, _, _ := strings.Cut(s.Type, ".")
		d.Header.Set("Linear-Event", kind)
	},
	Samples: []provider.Sample{
		declared.Sample(files, "Issue.create", "samples/issue_create.json"),
		declared.Sample(files, "Issue.update", "samples/issue_update.json"),
		declared.Sample(files, "Issue.remove", "samples/issue_remove.json"),
		declared.Sample(files, "Comment.create", "samples/comment_create.json"),
		declared.Sample(files, "Project.update", "samples/project_update.json"),
	},
	Vary: declared.Vary{
		Times:   []declared.Time{*declared.At("json:createdAt", declared.RFC3339), *declared.At("json:data.updatedAt", declared.RFC3339)},
		Objects: []string{"data.id"},
		Counter: "data.description",
	},
	Docs: provider.Docs{
		Setup: "As a workspace admin open *Settings*, *API*, *Webhooks*, and make one with the ingest URL; the secret is its *signing secret* " +
			"(`lin_wh_...`). Workspaces are told apart by `organizationId`; list those you take under `accounts`, or leave it out for all. " +
			"The signed time may be 60 s old, as Linear says; set `tolerance` for more.",
		Key: "`Linear-Delivery`, else a digest of the content. Nothing signs that header: whoever captured a delivery can send it again as another event " +
			"for a minute. It then says the same of the same object, so nothing changes.",
		Links: []string{"https://linear.app/developers/webhooks"},
		Unsure: []string{
			"That every delivery carries `Linear-Delivery`, and a retry the same.",
			"That a retry (after 1 minute, 1 hour, 6 hours) carries a new `webhookTimestamp`. If the time is the first one's, retries are refused as stale; " +
				"set `tolerance: 8h` then.",
			"That `updatedAt` moves with every change; Linear calls it the time of the last meaningful one. The receipt bounds what it may have missed.",
			"That a removed object moved its `updatedAt`. If it did not, it is ambiguous whether it was removed, and a look is owed. A removed issue can be " +
				"restored, so no removal is final.",
		},
	},
}
