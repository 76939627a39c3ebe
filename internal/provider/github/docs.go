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
		Setup: "Add a webhook to a repository or an organization (Settings, Webhooks), or to a GitHub App. Use the " +
			"ingest URL as *Payload URL*, either content type, and a *Secret* that you generate (`openssl rand " +
			"-hex 32`). It is also the secret of the source. With `accounts`, a source accepts only " +
			"deliveries of the owners that you list, by login. Postern reads the owner from the signed body. " +
			"GitHub sends bodies of up to 25 MB, so raise the source's `max_body_bytes` if large pushes occur. " +
			"GitHub waits 10 s for a response and never retries automatically. For three days, you can send a " +
			"failed delivery again by hand or through GitHub's API.",
		Signature: scheme.Describe() + " A form is signed as a form. Postern does not accept the older SHA-1 " +
			"signature in `X-Hub-Signature`.",
		Key: "The header `X-GitHub-Delivery`; a redelivery has the same value. The type is the header " +
			"`X-GitHub-Event` and the body's `action`: `issues.opened`. Neither header is signed. If someone sends " +
			"a captured body again with another delivery id, it is one more event of an old version, which changes " +
			"nothing. With the name of another event, it is dead: Postern accepts a body only for an event that " +
			"can have this body. It accepts a delete only if the body can be nothing else. The fingerprint covers " +
			"the content of the body, not its bytes, because GitHub's API returns a delivery in other bytes.",
		Objects: "Objects are stored without an account, by GitHub's number. The number stays the same when the name " +
			"or the owner changes. An object with `updated_at` is mirrored completely and ordered by `updated_at`, " +
			"in seconds. Within one second, the old values in `changes` determine the order. These objects are " +
			"`issue`, `pull_request`, `issue_comment`, `pull_request_review`, `pull_request_review_comment`, " +
			"`commit_comment`, `release`, `repository`, `milestone`, `check_suite`, `deployment`, " +
			"`deployment_status`, `installation` and `workflow_run`. A later attempt of a workflow run follows an " +
			"earlier one. A push contains the commits of its `ref` (`REPOSITORY:refs/heads/main`) before and after " +
			"the push. It is ordered by the repository's `pushed_at`. A `star` is ordered by its `starred_at`. " +
			"Objects without a time need a refetch: `label`, `team`, `member`, `membership`, `check_run`, " +
			"`workflow_job`, and deletes of a repository or a star. Deletes of an issue (also its transfer), " +
			"comment, release, milestone, label, team or installation are permanent. For events that are not listed " +
			"here, the body may contain an object under the event's name. That object then needs a refetch.",
		Links: []string{"https://docs.github.com/en/webhooks/webhook-events-and-payloads",
			"https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"},
		Unconfirmed: []string{"A body may be rendered when the event happens or when it is delivered. Postern " +
			"derives no order from the name of an event.",
			"`updated_at` of an issue, a pull request, a release, a repository or an installation may not advance " +
				"with every change. Postern assumes that it does not.",
			"A repository's `pushed_at` in a push is the time of that push.",
			"A restored repository keeps its number.", "Numbers of deleted objects are never reused."},
	}
}

// Schemes returns GitHub's signature scheme.
func (GitHub) Schemes() []*signature.Scheme { return []*signature.Scheme{&scheme} }
