package github

// because gives several actions one reason.
func because(reason string, actions ...string) map[string]string {
	out := make(map[string]string, len(actions))
	for _, a := range actions {
		out[a] = reason
	}
	return out
}

const (
	noClock  = "the body carries no time of change, so the state has no place in the order"
	beside   = "the body names the ref and not what it is at; the push that comes beside it does, where there is one"
	returns  = "the delete carries no time, and the same object can come back"
	noChange = "a user asks for it to be run again or presses a button on it, which does not change it; what comes of it has an event of its own"
)

// rows is what GitHub's events mean for the version rule (https://docs.github.com/en/webhooks/webhook-events-and-payloads).
// Nothing says whether bodies are rendered when the change happens or when they are sent, so no action comes before another
// and no status orders two bodies: updated_at alone does, in seconds. Where several fields have one updated_at, the old values
// in changes may tell the order. What sounds like an end and is none: closed, dismissed, unpublished, suspend, archived.
var rows = []row{
	// Pinning is not known to move an issue's time. A transfer ends an issue; the other repository gets another one, under another id.
	{event: "issues", object: "issue", member: "issue", may: []string{"assignee", "label", "milestone", "type"}, always: []string{"state", "title"},
		whole: []string{"opened", "edited", "closed", "reopened", "assigned", "unassigned", "labeled", "unlabeled", "locked", "unlocked",
			"milestoned", "demilestoned", "pinned", "unpinned", "typed", "untyped", "field_added", "field_removed"},
		deletes: []string{"deleted", "transferred"}, still: true,
		volatile: volatileIssue},
	// Whether it can be merged is worked out after the event and again when its base moves.
	{event: "pull_request", object: "pull_request", member: "pull_request", always: []string{"merged"},
		may: []string{"number", "after", "assignee", "before", "label", "milestone", "reason", "requested_reviewer", "requested_team", "stack"},
		whole: []string{"opened", "edited", "closed", "reopened", "synchronize", "assigned", "unassigned", "labeled", "unlabeled", "locked", "unlocked",
			"milestoned", "demilestoned", "ready_for_review", "converted_to_draft", "review_requested", "review_request_removed",
			"auto_merge_enabled", "auto_merge_disabled", "enqueued", "dequeued", "stacked"},
		still: true, volatile: volatilePull},
	// Comments on issues, and those on pull requests that are not on a line of code.
	{event: "issue_comment", object: "issue_comment", member: "comment", with: []string{"issue"},
		whole: []string{"created", "edited", "pinned", "unpinned"}, deletes: []string{"deleted"}, volatile: volatileComment},
	// Older bodies say only when it was submitted, which an edit or a dismissal does not move.
	{event: "pull_request_review", object: "pull_request_review", member: "review", with: []string{"pull_request"},
		whole: []string{"submitted", "edited", "dismissed"}, volatile: []string{"author_association"}},

	// Comments on a line of a pull request, and on a commit. Where the first is follows the commits that come, which does not move its time.
	{event: "pull_request_review_comment", object: "pull_request_review_comment", member: "comment", with: []string{"pull_request"},
		whole: []string{"created", "edited"}, deletes: []string{"deleted"}, volatile: volatileReviewComment},
	{event: "commit_comment", object: "commit_comment", member: "comment", whole: []string{"created"}, volatile: volatileComment},

	// A ref is a branch or a tag of a repository. A push is its history; a ref that is deleted can be made again.
	{event: "push", object: "ref", member: "ref", with: []string{"after", "before", "pusher"}, whole: []string{""},
		version: "repository.pushed_at", shape: ref{}},
	{event: "create", object: "ref", member: "ref", with: []string{"ref_type"}, why: because(beside, ""), shape: ref{}},
	{event: "delete", object: "ref", member: "ref", with: []string{"ref_type"}, why: because(beside, ""), shape: ref{}},

	// A release has its own time in newer bodies alone. Whether each upload of an asset moves it is not documented.
	{event: "release", object: "release", member: "release",
		whole: []string{"created", "published", "unpublished", "edited", "prereleased", "released"}, deletes: []string{"deleted"},
		still: true, volatile: volatileRelease},
	// A repository's time is not known to move when it is renamed or passed on. A deleted one can be restored. Stars, pushes and
	// what else is counted in it give it no event.
	{event: "repository", object: "repository", member: "repository", alone: true, always: []string{"default_branch", "full_name"},
		whole: []string{"created", "edited", "renamed", "transferred", "archived", "unarchived", "publicized", "privatized"},
		why:   because(returns, "deleted"), still: true, volatile: volatileRepository},
	// That a user has starred a repository. The end of it has no time.
	{event: "star", object: "star", member: "starred_at", ids: []string{"repository.id", "sender.id"}, whole: []string{"created"},
		why: because(returns, "deleted"), version: "starred_at", shape: star{}},
	{event: "watch", ignored: because("a star under its older name; the event star tells when", "started")},

	// A run that is run again goes back to its beginning under the same id, as the next attempt.
	{event: "workflow_run", object: "workflow_run", member: "workflow_run", with: []string{"workflow"},
		whole: []string{"requested", "in_progress", "completed"}, attempt: "workflow_run.run_attempt",
		volatile: volatileRun},
	{event: "workflow_job", object: "workflow_job", member: "workflow_job", may: []string{"deployment"},
		why: because(noClock, "queued", "waiting", "in_progress", "completed")},
	{event: "check_run", object: "check_run", member: "check_run", why: because(noClock, "created", "completed"),
		ignored: because(noChange, "rerequested", "requested_action")},
	{event: "check_suite", object: "check_suite", member: "check_suite", whole: []string{"requested", "rerequested", "completed"},
		volatile: volatileSuite},
	{event: "deployment", object: "deployment", member: "deployment", may: []string{"workflow", "workflow_run"}, whole: []string{"created"}, volatile: volatileDeployment},
	// Each status is an object of its own, which never changes.
	{event: "deployment_status", object: "deployment_status", member: "deployment_status", with: []string{"deployment"},
		may: []string{"check_run", "workflow", "workflow_run"}, whole: []string{"created"}, volatile: volatileDeployment},

	// Installing an app again makes another installation. To lift a suspension is not known to move its time.
	{event: "installation", object: "installation", member: "installation", may: []string{"repositories", "requester"},
		always: []string{"account", "app_id"},
		whole:  []string{"created", "suspend", "unsuspend", "new_permissions_accepted"}, deletes: []string{"deleted"}, still: true},
	{event: "installation_repositories", object: "installation", member: "installation", with: []string{"repositories_added", "repositories_removed"},
		may: []string{"repository_selection", "requester"}, why: because("the body tells which repositories came and went, and not all there are", "added", "removed")},
	{event: "installation_target", object: "installation", member: "installation", with: []string{"account"}, may: []string{"target_type"},
		why: because("the account of the installation was renamed; the body has the installation's id alone", "renamed")},

	// That a user is a member of a repository, and of a team.
	{event: "member", object: "member", member: "member", ids: []string{"repository.id", "member.id"},
		why: because("the body tells a change of what the member may do, without a time", "added", "edited", "removed")},
	{event: "membership", object: "membership", member: "member", with: []string{"scope", "team"}, ids: []string{"team.id", "member.id"},
		why: because(noClock, "added", "removed")},
	{event: "team", object: "team", member: "team", why: because(noClock, "created", "edited"), deletes: []string{"deleted"}},
	// What a team may do in a repository.
	{event: "team", object: "team_repository", member: "team", with: []string{"repository"}, ids: []string{"team.id", "repository.id"},
		why: because(noClock, "added_to_repository", "removed_from_repository")},

	{event: "label", object: "label", member: "label", why: because(noClock, "created", "edited", "archived", "unarchived"), deletes: []string{"deleted"}},
	{event: "milestone", object: "milestone", member: "milestone", whole: []string{"created", "edited", "closed", "opened"}, deletes: []string{"deleted"},
		volatile: []string{"open_issues", "closed_issues"}},

	{event: "ping", member: "hook", ignored: because("GitHub tries the address of a new webhook; that is no object", "")},
	{event: "meta", member: "hook", ignored: because("the webhook itself was deleted; GitHub sends no more to this address by it", "deleted")},
}
