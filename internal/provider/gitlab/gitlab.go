// Package gitlab reads GitLab's webhooks. A hook with a signing token signs body, id and time as Standard Webhooks do; one with
// a secret token only shows that token, which proves the sender and nothing of the body. An update tells the old values of what
// changed, in times and words that differ from those of the object.
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

// signingToken begins the secrets that sign. Such a text is never compared with a shown token, and no other text is ever a key: a
// secret token travels with every delivery, and whoever saw one could sign with it.
const signingToken = "whsec_"

// signing is how a hook with a signing token signs.
var signing = &signature.Scheme{
	Name: "gitlab-signing-token", Encoding: signature.Base64,
	Key:       signature.Key{Form: signature.KeyBase64, Strip: []string{signingToken}, Prefixed: true},
	Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Webhook-Signature")}, Separator: " ", Assign: ",", Item: "v1"},
	Timestamp: &signature.Clock{From: signature.MustRef("header:Webhook-Timestamp")},
	Message:   signature.MustTemplate("{header:Webhook-Id}.{timestamp}.{body}"),
}

var spec = declared.Spec{
	Name: "gitlab", Title: "GitLab",
	Schemes: []*signature.Scheme{
		signing,
		{
			Name: "gitlab-token", Method: signature.Token, Encoding: signature.Plain,
			// Of a signing token the decoded bytes would have to be shown: nobody shows those.
			Key:       signature.Key{Form: signature.KeyBase64, Strip: []string{signingToken}, PlainElse: true},
			Signature: signature.Layout{In: []signature.Ref{signature.MustRef(tokenHeader)}},
		},
	},
	Headers: []string{"X-Gitlab-Instance", "X-Gitlab-Webhook-Uuid", "X-Gitlab-Event-Uuid"},
	Events: declared.Events{
		Key: declared.Templates("{header:Webhook-Id}", "{header:Idempotency-Key}"),
		Type: declared.Templates("{json:object_kind}.{json:object_attributes.action}", "{json:object_kind}.{json:action}", "{json:object_kind}",
			"{json:event_name}", "{header:X-Gitlab-Event}"),
		Account: declared.Templates("{json:project.id}", "{json:project_id}"),
	},
	Objects: objects(),
	Dress:   dress,
	Samples: []provider.Sample{
		declared.Sample(files, "issue.open", "samples/issue_open.json"),
		declared.Sample(files, "issue.update", "samples/issue_update.json"),
		declared.Sample(files, "merge_request.open", "samples/merge_request_open.json"),
		declared.Sample(files, "merge_request.merge", "samples/merge_request_merge.json"),
		declared.Sample(files, "note.create", "samples/note_create.json"),
		declared.Sample(files, "deployment", "samples/deployment.json"),
		declared.Sample(files, "pipeline", "samples/pipeline.json"),
		declared.Sample(files, "push", "samples/push.json"),
		declared.Sample(files, "release.create", "samples/release_create.json"),
		declared.Sample(files, "release.delete", "samples/release_delete.json"),
	},
	Vary: declared.Vary{
		Times:   []declared.Time{*declared.At("json:object_attributes.updated_at", declared.RFC3339), *declared.At("json:status_changed_at", declared.RFC3339)},
		Objects: []string{"object_attributes.id", "deployment_id", "id"},
		Counter: "object_attributes.description",
	},
	Docs: provider.Docs{
		Setup: "In the project or group under *Settings*, *Webhooks*, add one with the ingest URL. Generate a **signing token** (`whsec_...`) and give " +
			"it as the secret, whole; leave *Secret token* empty. An older GitLab has only the secret token: then that is the secret. It " + notCovered +
			": whoever saw one delivery can send any other, and choose its id, until the token is changed. A source with both takes either; so while hooks " +
			"move from one to the other give both, then drop the secret token. The token's header is never kept. Projects are told apart by their number " +
			"(`project.id`); list those you take under `accounts`, or leave it out for all.",
		Key: "`webhook-id`, which is signed where there is a signing token, else `Idempotency-Key`, which nothing signs, else a digest of the content. " +
			"Both headers stay the same when a delivery is sent again.",
		Links: []string{"https://docs.gitlab.com/user/project/integrations/webhooks/", "https://docs.gitlab.com/user/project/integrations/webhook_events/"},
		Unsure: []string{
			"The headers of signing tokens. They are read from the change that brought them to GitLab, not from its documentation.",
			"That `Idempotency-Key` comes with every delivery, stays the same when one is sent again, and equals `webhook-id`, so that a hook which gets a " +
				"signing token goes on under the same names.",
			"That GitLab waits 10 s for an answer and switches a failing hook off for a while.",
			"That `updated_at` moves with every change; the receipt bounds what it may have missed.",
		},
	},
}

const (
	tokenHeader = "header:X-Gitlab-Token"
	notCovered  = "proves the sender and nothing of the body"
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
		Version: &declared.Version{From: signature.MustRef("json:object_attributes.updated_at"), Still: true},
		// What the event did; what GitLab computes when it is asked; and the projects, which change by themselves.
		Volatile: []string{"action", "oldrev", "merge_status", "detailed_merge_status", "head_pipeline_id", "source", "target"},
	}
	deployment := declared.Object{
		Events: kinds("deployment"), Type: declared.Templates("deployment"), ID: declared.Templates("{json:deployment_id}"), State: ".",
		Version: &declared.Version{From: signature.MustRef("json:status_changed_at"), Still: true}, Volatile: []string{"project", "user"},
	}
	release := declared.Object{
		Events: kinds("release"), Type: declared.Templates("release"), ID: declared.Templates("{json:id}"), State: ".",
		Deletes: []string{"release.delete"}, // the ids are not documented never to be given again
	}
	return []declared.Object{
		attributes, deployment, release,
		{Events: kinds("pipeline"), Type: declared.Templates("pipeline"), ID: declared.Templates("{json:object_attributes.id}"),
			Partial: "the event carries no time of the pipeline's last change"},
		{Events: kinds("build"), Type: declared.Templates("build"), ID: declared.Templates("{json:build_id}"),
			Partial: "the event carries no time of the job's last change"},
		{Events: []string{"push", "tag_push"}, Ignored: "a push names commits, no object that is mirrored"},
		{Ignored: "events of this type concern no object that is mirrored"},
	}
}

// dress sets the headers that GitLab sends: the id under its older name too, and under that alone where nothing is signed.
func dress(src *provider.Source, d *provider.Delivery, _ provider.Sample) {
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

// eventName is how X-Gitlab-Event spells a kind ("merge_request": "Merge Request Hook").
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
