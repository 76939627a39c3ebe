package github

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var _ provider.Documented = GitHub{}

// Docs describes GitHub to people.
func (GitHub) Docs() provider.Docs {
	return provider.Docs{
		Title: "GitHub",
		Setup: "Add a webhook to a repository or an organization (Settings, Webhooks), or to a GitHub App, with the " +
			"ingest URL as *Payload URL*, either content type, and a *Secret* of your " +
			"own making (`openssl rand -hex 32`), which is the source's. Under `account` or `accounts` a source can " +
			"name the owners, by login, whose deliveries it accepts; they are read from the " +
			"signed body. GitHub sends bodies of up to 25 MB, so raise the source's `max_body_bytes` where large " +
			"pushes occur. It waits 10 s for a response and never retries automatically: what it " +
			"could not deliver is sent again by hand, or through its API, for three days.",
		Signature: scheme.Describe() + " A form is signed as a form. The older SHA-1 signature in `X-Hub-Signature` " +
			"is not accepted.",
		Key: "The header `X-GitHub-Delivery`, which a redelivery keeps. The type is the header `X-GitHub-Event` and " +
			"the body's `action`: `issues.opened`. Both headers are unsigned: a captured body " +
			"that is sent again under another delivery id is one more event of an old version, which changes " +
			"nothing; one under another event's name is dead, because a body is accepted only " +
			"under the event whose body it can be, and a delete only from a body that can be nothing else. The " +
			"fingerprint covers the content of the body, not its bytes: GitHub's API returns a delivery in other " +
			"bytes.",
		Objects: "Objects are stored without an account and by GitHub's number, which survives a change of name or " +
			"owner. An object with `updated_at` is mirrored whole and ordered by it, in seconds, and within one " +
			"second by the old values in `changes`: `issue`, `pull_request`, `issue_comment`, `pull_request_review`, " +
			"`pull_request_review_comment`, `commit_comment`, `release`, `repository`, `milestone`, `check_suite`, " +
			"`deployment`, " +
			"`deployment_status`, `installation`, and `workflow_run`, where a later attempt follows an earlier " +
			"one. A push contains the commits of its `ref` (`REPOSITORY:refs/heads/main`) before and " +
			"after it, ordered by the repository's `pushed_at`. A `star` has its `starred_at`. Objects without a " +
			"time " +
			"(`label`, `team`, `member`, `membership`, `check_run`, `workflow_job`, the " +
			"deletes of a repository and of a star) need a refetch. Deletes of an issue (and its transfer), comment, " +
			"release, milestone, label, team or installation are permanent. For events not " +
			"listed here the object is named if the body contains one under the event's name, and needs a refetch.",
		Links: []string{"https://docs.github.com/en/webhooks/webhook-events-and-payloads",
			"https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"},
		Unconfirmed: []string{"Whether bodies are rendered when the event happens or when it is delivered; no order " +
			"is " +
			"derived from the name of an event.",
			"Whether `updated_at` moves with every change of an issue, a pull request, a release, a repository or an " +
				"installation; Postern assumes that it does not.",
			"Whether a repository's `pushed_at` in a push is the time of that push.",
			"Whether a restored repository keeps its number.", "That numbers of deleted objects are never reused" +
				"again."},
	}
}

// Schemes returns GitHub's signature scheme.
func (GitHub) Schemes() []*signature.Scheme { return []*signature.Scheme{&scheme} }
