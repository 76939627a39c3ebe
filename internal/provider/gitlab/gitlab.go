// Package gitlab is the provider GitLab. A hook with a signing token signs body, id and time as
// Standard Webhooks do. A hook with a secret token only sends that token, which verifies the sender
// but nothing of the body. An update contains the old values of the changed fields, in other
// formats than those of the object.
package gitlab

import (
	"embed"
	"encoding/json"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed samples/*.json
var files embed.FS

// New returns the provider.
func New() *declared.Provider { return declared.New(spec) }

// signingToken begins the secrets that sign. Such a secret is never compared with a received token,
// and no other secret is used as a key: a secret token is in every delivery, so anyone who saw one
// could sign with it.
const signingToken = "whsec_"

// signing is the scheme of a hook with a signing token.
var signing = &signature.Scheme{
	Name: "gitlab-signing-token", Encoding: signature.Base64,
	Key: signature.Key{Form: signature.KeyBase64, Strip: []string{signingToken}, RequirePrefix: true},
	Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Webhook-Signature")}, Separator: " ",
		KeySeparator: ",", Item: "v1"},
	Timestamp: &signature.Clock{From: signature.MustRef("header:Webhook-Timestamp")},
	Message:   signature.MustTemplate("{header:Webhook-Id}.{timestamp}.{body}"),
}

var spec = declared.Spec{
	Name: "gitlab", Title: "GitLab",
	Schemes: []*signature.Scheme{
		signing,
		{
			Name: "gitlab-token", Method: signature.Token, Encoding: signature.Plain,
			// A signing token would have to be sent as its decoded bytes, which no sender does.
			Key: signature.Key{Form: signature.KeyBase64, Strip: []string{signingToken},
				VerbatimWithoutPrefix: true},
			Signature: signature.Layout{In: []signature.Ref{signature.MustRef(tokenHeader)}},
		},
	},
	Headers: []string{"X-Gitlab-Instance", "X-Gitlab-Webhook-Uuid", "X-Gitlab-Event-Uuid"},
	Events: declared.Events{
		Key: declared.Templates("{header:Webhook-Id}", "{header:Idempotency-Key}"),
		Type: declared.Templates("{json:object_kind}.{json:object_attributes.action}",
			"{json:object_kind}.{json:action}", "{json:object_kind}",
			"{json:event_name}", "{header:X-Gitlab-Event}"),
		Account: declared.Templates("{json:project.id}", "{json:project_id}"),
	},
	Objects:    objects(),
	SetHeaders: setHeaders,
	Samples: []provider.Sample{
		declared.LoadSample(files, "issue.open", "samples/issue_open.json"),
		declared.LoadSample(files, "issue.update", "samples/issue_update.json"),
		declared.LoadSample(files, "merge_request.open", "samples/merge_request_open.json"),
		declared.LoadSample(files, "merge_request.merge", "samples/merge_request_merge.json"),
		declared.LoadSample(files, "note.create", "samples/note_create.json"),
		declared.LoadSample(files, "deployment", "samples/deployment.json"),
		declared.LoadSample(files, "pipeline", "samples/pipeline.json"),
		declared.LoadSample(files, "push", "samples/push.json"),
		declared.LoadSample(files, "release.create", "samples/release_create.json"),
		declared.LoadSample(files, "release.delete", "samples/release_delete.json"),
	},
	Variants: declared.Variants{
		Times: []declared.Time{*declared.TimeAt("json:object_attributes.updated_at", declared.RFC3339),
			*declared.TimeAt("json:status_changed_at", declared.RFC3339)},
		Objects: []string{"object_attributes.id", "deployment_id", "id"},
		Counter: "object_attributes.description",
	},
	Docs: provider.Docs{
		Setup: "In the project or group, under *Settings*, *Webhooks*, add a webhook with the ingest URL. Generate " +
			"a **signing token** (`whsec_...`) and use it as the secret, with its prefix. Leave *Secret token* " +
			"empty. An older GitLab has only the secret token: use that as the secret. It " + notCovered +
			": anyone who saw one delivery can send any other delivery and choose its id, until you change the " +
			"token. A source with both secrets accepts either. To move webhooks from one to the other, set both, " +
			"and remove the secret token afterwards. The header with the token is never stored. Projects are " +
			"distinguished by their number (`project.id`). List those that you accept under `accounts`, or leave " +
			"`accounts` out to accept all.",
		Key: "`webhook-id`, which is signed if there is a signing token. If it is missing, `Idempotency-Key`, " +
			"which is not signed, or else a digest of the content. Both headers stay the same when GitLab sends a " +
			"delivery again.",
		Links: []string{"https://docs.gitlab.com/user/project/integrations/webhooks/",
			"https://docs.gitlab.com/user/project/integrations/webhook_events/"},
		Unconfirmed: []string{
			"Signing tokens use these headers. We read them in the change that added them to GitLab, not in its " +
				"documentation.",
			"`Idempotency-Key` is in every delivery, stays the same when a delivery is sent again, and equals " +
				"`webhook-id`. A webhook that gets a signing token therefore keeps the same keys.",
			"GitLab waits 10 s for a response, and disables a failing webhook for a while.",
			"`updated_at` advances with every change. Postern does not rely on this: it assumes that a state can " +
				"be from any time between `updated_at` and the receipt.",
		},
	},
}

const (
	tokenHeader = "header:X-Gitlab-Token"
	notCovered  = "verifies the sender, but not the body"
)

func objects() []declared.Object {
	kinds := func(names ...string) []string {
		var out []string
		for _, name := range names {
			out = append(out, name, name+".*")
		}
		return out
	}
	attributes := declared.Object{
		Events: kinds("issue", "work_item", "merge_request", "note", "milestone"),
		Type:   declared.Templates("{json:object_kind}"), ID: declared.Templates("{json:object_attributes.id}"),
		State: "object_attributes", Changes: "changes",
		Version: &declared.Version{From: signature.MustRef("json:object_attributes.updated_at"), MayNotAdvance: true},
		// The action of the event, values that GitLab computes on request, and the projects, which
		// change independently.
		IgnoredPaths: []string{"action", "oldrev", "merge_status", "detailed_merge_status", "head_pipeline_id",
			"source", "target"},
	}
	deployment := declared.Object{
		Events: kinds("deployment"), Type: declared.Templates("deployment"),
		ID: declared.Templates("{json:deployment_id}"), State: ".",
		Version:      &declared.Version{From: signature.MustRef("json:status_changed_at"), MayNotAdvance: true},
		IgnoredPaths: []string{"project", "user"},
	}
	release := declared.Object{
		Events: kinds("release"), Type: declared.Templates("release"), ID: declared.Templates("{json:id}"), State: ".",
		Deletes: []string{"release.delete"}, // GitLab does not document that ids are never reused
	}
	return []declared.Object{
		attributes, deployment, release,
		{Events: kinds("pipeline"), Type: declared.Templates("pipeline"),
			ID:      declared.Templates("{json:object_attributes.id}"),
			Partial: "the event has no time of the pipeline's last change"},
		{Events: kinds("build"), Type: declared.Templates("build"), ID: declared.Templates("{json:build_id}"),
			Partial: "the event has no time of the job's last change"},
		{Events: []string{"push", "tag_push"}, Ignored: "a push contains commits, not an object that is mirrored"},
		{Ignored: "events of this type are about no object that is mirrored"},
	}
}

// setHeaders sets GitLab's headers. It sets the id under its older name too. Without a signing
// token it sets the id only under the older name.
func setHeaders(src *provider.Source, d *provider.Delivery, _ provider.Sample) {
	d.Header.Set("Idempotency-Key", d.Header.Get("Webhook-Id"))
	if len(src.Secrets) > 0 && signing.CheckSecret(src.Secrets[0].Value) != nil {
		d.Header.Del("Webhook-Id")
	}
	var body struct {
		Kind string `json:"object_kind"`
	}
	if json.Unmarshal(d.Body, &body) == nil && body.Kind != "" {
		d.Header.Set("X-Gitlab-Event", eventName(body.Kind))
	}
	d.Header.Set("X-Gitlab-Instance", "https://gitlab.example")
}

// eventName returns the kind in the format of X-Gitlab-Event ("merge_request": "Merge Request
// Hook").
func eventName(kind string) string {
	if kind == "build" {
		return "Job Hook"
	}
	words := strings.Split(kind, "_")
	for i, word := range words {
		words[i] = strings.ToUpper(word[:min(1, len(word))]) + word[min(1, len(word)):]
	}
	return strings.Join(words, " ") + " Hook"
}
