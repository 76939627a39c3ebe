package github

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var _ provider.Documented = GitHub{}

// Docs is GitHub for people.
func (GitHub) Docs() provider.Docs {
	return provider.Docs{
		Title: "GitHub",
		Setup: "Add a webhook to a repository or an organization (Settings, Webhooks), or to a GitHub App, with the ingest URL as *Payload URL*, either content type, and a *Secret* of your " +
			"own making (`openssl rand -hex 32`), which is the source's. Under `account` or `accounts` a source can name the owners, by login, whose deliveries it takes; they are read from the " +
			"signed body. GitHub sends bodies of up to 25 MB, so raise the source's `max_body_bytes` where large pushes come. It waits 10 s for an answer and never tries again by itself: what it " +
			"could not deliver is sent again by hand, or through its API, for three days.",
		Signature: scheme.Describe() + " A form is signed as a form. The older SHA-1 signature in `X-Hub-Signature` is not taken.",
		Key: "The header `X-GitHub-Delivery`, which a redelivery keeps. The type is the header `X-GitHub-Event` and the body's `action`: `issues.opened`. Both headers come unsigned: a captured body " +
			"that is sent again under another delivery id is one more event of an old version, which changes nothing; one under another event's name is dead, since a body is believed only " +
			"under the event whose body it can be, and a delete only from a body that is nothing else. The fingerprint is of what the body says, not of its bytes: GitHub's API tells of a delivery in other bytes.",
		Objects: "Objects are kept under no account and by GitHub's number, which outlives a change of name or owner. What has an `updated_at` is mirrored whole and ordered by it, in seconds, and within one " +
			"second by the old values in `changes`: `issue`, `pull_request`, `issue_comment`, `pull_request_review`, `pull_request_review_comment`, `commit_comment`, `release`, `repository`, `milestone`, `check_suite`, `deployment`, " +
			"`deployment_status`, `installation`, and `workflow_run`, where a later attempt comes after an earlier one. A push tells which commit its `ref` (`REPOSITORY:refs/heads/main`) was at and " +
			"is at now, ordered by the repository's `pushed_at`. A `star` has its `starred_at`. What carries no time (`label`, `team`, `member`, `membership`, `check_run`, `workflow_job`, the " +
			"deletes of a repository and of a star) owes a look. Deletes of an issue (and its transfer), comment, release, milestone, label, team or installation are for good. Of events not " +
			"listed here the object is named where the body has one under the event's name, and owes a look.",
		Links: []string{"https://docs.github.com/en/webhooks/webhook-events-and-payloads", "https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"},
		Unsure: []string{"Whether bodies are rendered when the event happens or when it is delivered; no order is taken from what an event is called.",
			"Whether `updated_at` moves with every change of an issue, a pull request, a release, a repository or an installation; it is taken not to.",
			"Whether a repository's `pushed_at` in a push is the time of that push.", "Whether a restored repository keeps its number.", "That numbers of deleted objects are never given again."},
	}
}

// Schemes are how GitHub signs.
func (GitHub) Schemes() []*signature.Scheme { return []*signature.Scheme{&scheme} }
