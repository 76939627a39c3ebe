package github

// withReason gives several actions one reason.
func withReason(reason string, actions ...string) map[string]string {
	out := make(map[string]string, len(actions))
	for _, a := range actions {
		out[a] = reason
	}
	return out
}

const (
	noClock          = "the body has no time of change, so the order of the state is unknown"
	refWithoutCommit = "the body names the ref but not its commit; the push event contains it, if there is one"
	mayReturn        = "the delete has no time, and the same object can return"
	noChange         = "a user requests a new run or presses a button, which does not change the object; the result " +
		"has an event of its own"
)

// eventRules say what GitHub's events mean for the version rule
// (https://docs.github.com/en/webhooks/webhook-events-and-payloads). GitHub does not document
// whether bodies are rendered when the change happens or when they are sent. So no action precedes
// another and no status orders two bodies: only updated_at does, in seconds. If several changes
// have one updated_at, the old values in changes may give the order. These are not deletes: closed,
// dismissed, unpublished, suspend, archived.
var eventRules = []eventRule{
	// Pinning may not advance an issue's time. A transfer ends an issue; the other repository gets
	// a new one, under another id.
	{event: "issues", object: "issue", member: "issue",
		optionalMembers: []string{"assignee", "label", "milestone", "type"},
		requiredFields:  []string{"state", "title"},
		wholeActions: []string{"opened", "edited", "closed", "reopened", "assigned", "unassigned", "labeled",
			"unlabeled", "locked", "unlocked", "milestoned", "demilestoned", "pinned", "unpinned", "typed", "untyped",
			"field_added", "field_removed"},
		deletes: []string{"deleted", "transferred"}, mayNotAdvance: true,
		ignoredPaths: ignoredInIssue},
	// GitHub computes after the event whether the pull request can be merged, and again when its
	// base changes.
	{event: "pull_request", object: "pull_request", member: "pull_request", requiredFields: []string{"merged"},
		optionalMembers: []string{"number", "after", "assignee", "before", "label", "milestone", "reason",
			"requested_reviewer", "requested_team", "stack"},
		wholeActions: []string{"opened", "edited", "closed", "reopened", "synchronize", "assigned", "unassigned",
			"labeled", "unlabeled", "locked", "unlocked", "milestoned", "demilestoned", "ready_for_review",
			"converted_to_draft", "review_requested", "review_request_removed", "auto_merge_enabled",
			"auto_merge_disabled", "enqueued", "dequeued", "stacked"},
		mayNotAdvance: true, ignoredPaths: ignoredInPull},
	// Comments on issues, and those on pull requests that are not on a line of code.
	{event: "issue_comment", object: "issue_comment", member: "comment", requiredMembers: []string{"issue"},
		wholeActions: []string{"created", "edited", "pinned", "unpinned"}, deletes: []string{"deleted"},
		ignoredPaths: ignoredInComment},
	// Older bodies contain only the time of submission, which an edit or a dismissal does not
	// change.
	{event: "pull_request_review", object: "pull_request_review", member: "review",
		requiredMembers: []string{"pull_request"},
		wholeActions:    []string{"submitted", "edited", "dismissed"}, ignoredPaths: []string{"author_association"}},

	// Comments on a line of a pull request, and on a commit. The position of the first changes with
	// new commits, without a new version.
	{event: "pull_request_review_comment", object: "pull_request_review_comment", member: "comment",
		requiredMembers: []string{"pull_request"},
		wholeActions:    []string{"created", "edited"}, deletes: []string{"deleted"},
		ignoredPaths: ignoredInReviewComment},
	{event: "commit_comment", object: "commit_comment", member: "comment", wholeActions: []string{"created"},
		ignoredPaths: ignoredInComment},

	// A ref is a branch or a tag of a repository. Its pushes are its history. A deleted ref can be
	// created again.
	{event: "push", object: "ref", member: "ref", requiredMembers: []string{"after", "before", "pusher"},
		wholeActions: []string{""},
		version:      "repository.pushed_at", shape: ref{}},
	{event: "create", object: "ref", member: "ref", requiredMembers: []string{"ref_type"},
		partialReasons: withReason(refWithoutCommit, ""), shape: ref{}},
	{event: "delete", object: "ref", member: "ref", requiredMembers: []string{"ref_type"},
		partialReasons: withReason(refWithoutCommit, ""), shape: ref{}},

	// Only newer bodies contain a release's own time. GitHub does not document whether each upload
	// of an asset advances it.
	{event: "release", object: "release", member: "release",
		wholeActions:  []string{"created", "published", "unpublished", "edited", "prereleased", "released"},
		deletes:       []string{"deleted"},
		mayNotAdvance: true, ignoredPaths: ignoredInRelease},
	// A repository's time may not advance when it is renamed or transferred. A deleted one can be
	// restored. Changes of its counters, such as stars and pushes, cause no event repository.
	{event: "repository", object: "repository", member: "repository", noOtherMembers: true,
		requiredFields: []string{"default_branch", "full_name"},
		wholeActions: []string{"created", "edited", "renamed", "transferred", "archived", "unarchived", "publicized",
			"privatized"},
		partialReasons: withReason(mayReturn, "deleted"), mayNotAdvance: true, ignoredPaths: ignoredInRepository},
	// A star records that a user has starred a repository. The event of its removal has no time.
	{event: "star", object: "star", member: "starred_at", ids: []string{"repository.id", "sender.id"},
		wholeActions:   []string{"created"},
		partialReasons: withReason(mayReturn, "deleted"), version: "starred_at", shape: star{}},
	{event: "watch", ignoredReasons: withReason("a star under its older name; the event star contains the time",
		"started")},

	// A run that is repeated starts again under the same id, as the next attempt.
	{event: "workflow_run", object: "workflow_run", member: "workflow_run", requiredMembers: []string{"workflow"},
		wholeActions: []string{"requested", "in_progress", "completed"}, attempt: "workflow_run.run_attempt",
		ignoredPaths: ignoredInRun},
	{event: "workflow_job", object: "workflow_job", member: "workflow_job", optionalMembers: []string{"deployment"},
		partialReasons: withReason(noClock, "queued", "waiting", "in_progress", "completed")},
	{event: "check_run", object: "check_run", member: "check_run",
		partialReasons: withReason(noClock, "created", "completed"),
		ignoredReasons: withReason(noChange, "rerequested", "requested_action")},
	{event: "check_suite", object: "check_suite", member: "check_suite",
		wholeActions: []string{"requested", "rerequested", "completed"},
		ignoredPaths: ignoredInSuite},
	{event: "deployment", object: "deployment", member: "deployment",
		optionalMembers: []string{"workflow", "workflow_run"},
		wholeActions:    []string{"created"}, ignoredPaths: ignoredInDeployment},
	// Each status is an object of its own, which never changes.
	{event: "deployment_status", object: "deployment_status", member: "deployment_status",
		requiredMembers: []string{"deployment"},
		optionalMembers: []string{"check_run", "workflow", "workflow_run"}, wholeActions: []string{"created"},
		ignoredPaths: ignoredInDeployment},

	// A new installation of an app has another id. Ending a suspension may not advance its time.
	{event: "installation", object: "installation", member: "installation",
		optionalMembers: []string{"repositories", "requester"},
		requiredFields:  []string{"account", "app_id"},
		wholeActions:    []string{"created", "suspend", "unsuspend", "new_permissions_accepted"},
		deletes:         []string{"deleted"},
		mayNotAdvance:   true},
	{event: "installation_repositories", object: "installation", member: "installation",
		requiredMembers: []string{"repositories_added", "repositories_removed"},
		optionalMembers: []string{"repository_selection", "requester"},
		partialReasons: withReason("the body contains the added and removed repositories, not all repositories",
			"added", "removed")},
	{event: "installation_target", object: "installation", member: "installation", requiredMembers: []string{"account"},
		optionalMembers: []string{"target_type"},
		partialReasons: withReason("the account of the installation was renamed; the body contains only the "+
			"installation's id", "renamed")},

	// A user's membership of a repository, and of a team.
	{event: "member", object: "member", member: "member", ids: []string{"repository.id", "member.id"},
		partialReasons: withReason("the body contains a change of the member's permission, without a time",
			"added", "edited", "removed")},
	{event: "membership", object: "membership", member: "member", requiredMembers: []string{"scope", "team"},
		ids:            []string{"team.id", "member.id"},
		partialReasons: withReason(noClock, "added", "removed")},
	{event: "team", object: "team", member: "team", partialReasons: withReason(noClock, "created", "edited"),
		deletes: []string{"deleted"}},
	// A team's permission in a repository.
	{event: "team", object: "team_repository", member: "team", requiredMembers: []string{"repository"},
		ids:            []string{"team.id", "repository.id"},
		partialReasons: withReason(noClock, "added_to_repository", "removed_from_repository")},

	{event: "label", object: "label", member: "label",
		partialReasons: withReason(noClock, "created", "edited", "archived", "unarchived"),
		deletes:        []string{"deleted"}},
	{event: "milestone", object: "milestone", member: "milestone",
		wholeActions: []string{"created", "edited", "closed", "opened"}, deletes: []string{"deleted"},
		ignoredPaths: []string{"open_issues", "closed_issues"}},

	{event: "ping", member: "hook",
		ignoredReasons: withReason("GitHub tests the address of a new webhook; this is not an object", "")},
	{event: "meta", member: "hook",
		ignoredReasons: withReason("the webhook itself was deleted; GitHub sends nothing more to this address "+
			"through it", "deleted")},
}
