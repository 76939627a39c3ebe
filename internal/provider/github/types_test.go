package github_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

// observed reads a body under an event type; the action comes from the type.
func observed(eventType, body string) string {
	if _, action, ok := strings.Cut(eventType, "."); ok {
		body = `{"action": "` + action + `", ` + strings.TrimPrefix(body, "{")
	}
	return summary(eventType, body)
}

func summary(eventType, body string) string {
	return providertest.Summary(github.GitHub{}.Observe(&provider.Source{},
		&provider.StoredEvent{Type: eventType, Body: []byte(body)}))
}

const (
	updated = `"updated_at": "2026-01-01T00:00:00Z"`
	inRepo  = `, "repository": {"id": 5, "owner": {"login": "octo-org"}, "updated_at": "2019-01-01T00:00:00Z"}, ` +
		`"sender": {"id": 6, "login": "mona"}`
	issue = `"issue": {"id": 7, ` + updated + `, "state": "open", "title": "Leak"}`
	pull  = `"pull_request": {"id": 8, ` + updated + `, "merged": false}`
	first = "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c"
	then  = "2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e"
	none  = "0000000000000000000000000000000000000000"
)

// pushed returns the body of a push from one commit to another.
func pushed(before, after string) string {
	return `{"ref": "refs/heads/main", "before": "` + before + `", "after": "` + after +
		`", "pusher": {"name": "mona"}, "repository": {"id": 5, "pushed_at": 1767225600}}`
}

// Each event and action of the table, with the smallest body that it needs.
func TestObserve_events_followTheirRule(t *testing.T) {
	t.Parallel()
	const at = ", at 1767225600000000/1000000, rank 1"
	const deleted = ", rank 1, deleted, final"
	const clock = ", partial: the body has no time of change, so the order of the state is unknown"
	const noCommit = ", partial: the body names the ref but not its commit; the push event contains it, if there is one"
	const returns = ", partial: the delete has no time, and the same object can return"
	const issueIgnored = ", without reactions author_association sub_issues_summary issue_dependencies_summary " +
		"milestone.open_issues milestone.closed_issues milestone.updated_at closed_by parent_issue_url " +
		"performed_via_github_app pinned_comment"
	const pullIgnored = ", without mergeable mergeable_state rebaseable merge_commit_sha author_association " +
		"base.repo head.repo stack milestone.open_issues milestone.closed_issues milestone.updated_at " +
		"allow_auto_merge allow_update_branch delete_branch_on_merge merge_commit_message merge_commit_title " +
		"squash_merge_commit_message squash_merge_commit_title use_squash_pr_title_as_default"
	const repoIgnored = ", without forks forks_count open_issues open_issues_count pushed_at size stargazers_count " +
		"watchers watchers_count network_count subscribers_count permissions role_name temp_clone_token organization " +
		"parent source template_repository security_and_analysis custom_properties code_of_conduct master_branch " +
		"anonymous_access_enabled allow_auto_merge allow_merge_commit allow_rebase_merge allow_squash_merge " +
		"allow_update_branch delete_branch_on_merge merge_commit_message merge_commit_title " +
		"squash_merge_commit_message squash_merge_commit_title use_squash_pr_title_as_default"
	const issueState = "issue 7" + at + ", own, may not advance" + issueIgnored
	const pullState = "pull_request 8" + at + ", own, may not advance" + pullIgnored
	const repoState = "repository 5" + at + ", own, may not advance" + repoIgnored
	const runIgnored = ", own, without head_repository head_repository_id pull_requests referenced_workflows repository"
	const commentIgnored = ", without reactions author_association performed_via_github_app pin"
	const lineIgnored = ", without reactions author_association commit_id line position side start_line start_side"
	const releaseIgnored = ", without reactions short_description_html is_short_description_html_truncated " +
		"mentions_count assets.download_count"
	tests := []struct{ types, body, want string }{
		{"issues.opened issues.edited issues.closed issues.reopened issues.locked issues.unlocked " +
			"issues.pinned issues.unpinned issues.field_added issues.field_removed", `{` + issue + inRepo + `}`,
			issueState},
		{"issues.assigned issues.unassigned", `{` + issue + `, "assignee": {"id": 6}` + inRepo + `}`, issueState},
		{"issues.labeled issues.unlabeled", `{` + issue + `, "label": {"id": 9}` + inRepo + `}`, issueState},
		{"issues.milestoned issues.demilestoned", `{` + issue + `, "milestone": {"id": 9}` + inRepo + `}`, issueState},
		{"issues.typed issues.untyped", `{` + issue + `, "type": {"id": 9}` + inRepo + `}`, issueState},
		{"issues.opened", `{` + issue + `, "changes": {"old_issue": {"id": 4}}}`, issueState},
		{"issues.edited", `{` + issue + `, "changes": {"title": {"from": "Leek"}}}`,
			"issue 7" + at + ", own, may not advance, before" + issueIgnored},
		{"issues.edited", `{` + issue + `, "changes": {}}`, issueState},
		// GitHub adds members to its bodies. An unknown one does not make an update unreadable.
		{"issues.opened", `{"novelty": {"id": 9}, ` + issue + `}`, issueState},
		{"issues.deleted", `{` + issue + inRepo + `}`, "issue 7" + deleted + issueIgnored},
		{"issues.transferred",
			`{` + issue + `, "changes": {"new_issue": {"id": 17}, "new_repository": {"id": 15}}` + inRepo + `}`,
			"issue 7" + deleted + issueIgnored},
		{"issues.frobbed", `{` + issue + inRepo + `}`,
			"issue 7, partial: the action is unknown, so its effect on the object is unknown"},
		{"issues.opened", `{"issue": {"id": 7, "updated_at": null, "state": "open", "title": "Leak"}}`,
			"issue 7, partial: the body's issue.updated_at is not a time, so the order of the state is unknown"},
		{"issues.opened", `{"issue": {"id": 7, ` + updated + `}}`,
			"issue 7, partial: the body has no issue.state, so it may be a shortened copy"},

		{"pull_request.opened pull_request.edited pull_request.closed pull_request.reopened " +
			"pull_request.locked pull_request.unlocked pull_request.ready_for_review " +
			"pull_request.converted_to_draft pull_request.auto_merge_enabled pull_request.auto_merge_disabled " +
			"pull_request.enqueued pull_request.dequeued", `{"number": 8, "reason": "x", ` + pull + inRepo + `}`,
			pullState},
		{"pull_request.synchronize", `{"before": "` + first + `", "after": "` + then + `", ` + pull + `}`, pullState},
		{"pull_request.stacked", `{"number": 8, "stack": {"size": 2}, ` + pull + inRepo + `}`, pullState},
		{"pull_request.assigned pull_request.unassigned", `{"assignee": {"id": 6}, ` + pull + `}`, pullState},
		{"pull_request.labeled pull_request.unlabeled", `{"label": {"id": 9}, ` + pull + `}`, pullState},
		{"pull_request.milestoned pull_request.demilestoned", `{"milestone": {"id": 9}, ` + pull + `}`, pullState},
		{"pull_request.review_requested pull_request.review_request_removed",
			`{"requested_reviewer": {"id": 6}, ` + pull + `}`, pullState},
		{"pull_request.review_requested", `{"requested_team": {"id": 6}, ` + pull + `}`, pullState},

		{"issue_comment.created issue_comment.edited issue_comment.pinned issue_comment.unpinned",
			`{"comment": {"id": 9, ` + updated + `}, ` + issue + `}`,
			"issue_comment 9" + at + ", own" + commentIgnored},
		{"issue_comment.edited",
			`{"comment": {"id": 9, "body": "b", ` + updated + `}, ` + issue + `, "changes": {"body": {"from": "a"}}}`,
			"issue_comment 9" + at + ", own, before" + commentIgnored},
		{"issue_comment.deleted", `{"comment": {"id": 9}, ` + issue + inRepo + `}`,
			"issue_comment 9" + deleted + commentIgnored},
		{"pull_request_review.submitted pull_request_review.edited pull_request_review.dismissed",
			`{"review": {"id": 9, ` + updated + `}, ` + pull + `}`,
			"pull_request_review 9" + at + ", own, without author_association"},
		{"pull_request_review.submitted", `{"review": {"id": 9, "submitted_at": "2026-01-01T00:00:00Z"}, ` + pull + `}`,
			"pull_request_review 9, partial: the body's review.updated_at is not a time, so the order of the " +
				"state is unknown"},

		{"push", pushed(first, then), "ref 5:refs/heads/main" + at + ", before"},
		{"push", pushed(none, then), "ref 5:refs/heads/main" + at},
		{"push", pushed(first, none), "ref 5:refs/heads/main" + at + ", deleted, no state, before"},
		{"push", pushed(none, none), "ref 5:refs/heads/main" + at + ", deleted, no state"},
		{"push", pushed(first, "main"),
			`dead: a push contains the commit of its ref after it, and this one contains "main"`},
		{"push", strings.Replace(pushed(first, then), "1767225600", "null", 1),
			"ref 5:refs/heads/main, partial: the body's repository.pushed_at is not a time, so the order of the " +
				"state is unknown"},
		{"push", strings.Replace(pushed(first, then), "refs/", "", 1),
			"dead: a body of the event push must contain the id of its ref, and this one does not"},
		{"create delete", `{"ref": "a/b", "ref_type": "branch"` + inRepo + `}`, "ref 5:refs/heads/a/b" + noCommit},
		{"create delete", `{"ref": "v1", "ref_type": "tag"` + inRepo + `}`, "ref 5:refs/tags/v1" + noCommit},
		{"create", `{"ref": "v1", "ref_type": "repository"` + inRepo + `}`,
			"dead: a body of the event create must contain the id of its ref, and this one does not"},

		{"release.created release.published release.unpublished release.edited release.prereleased release.released",
			`{"release": {"id": 9, ` + updated + `}` + inRepo + `}`,
			"release 9" + at + ", own, may not advance" + releaseIgnored},
		{"release.published", `{"release": {"id": 9, "created_at": "2026-01-01T00:00:00Z"}` + inRepo + `}`,
			"release 9, partial: the body's release.updated_at is not a time, so the order of the state is unknown"},
		{"release.deleted", `{"release": {"id": 9}` + inRepo + `}`, "release 9" + deleted + releaseIgnored},

		{"repository.created repository.edited repository.renamed repository.transferred repository.archived " +
			"repository.unarchived repository.publicized repository.privatized",
			`{"repository": {"id": 5, ` + updated +
				`, "full_name": "o/r", "default_branch": "main"}, "organization": {}, "sender": {}, "changes": {}}`,
			repoState},
		{"repository.edited",
			`{"repository": {"id": 5, ` + updated +
				`, "full_name": "o/r", "default_branch": "main"}, "changes": {"default_branch": {"from": "master"}}}`,
			"repository 5" + at + ", own, may not advance, before" + repoIgnored},
		{"repository.renamed",
			`{"repository": {"id": 5, ` + updated + `, "full_name": "o/r", "name": "r", "default_branch": "main"}, ` +
				`"changes": {"repository": {"name": {"from": "q"}}}}`, repoState},
		{"repository.transferred",
			`{"repository": {"id": 5, ` + updated + `, "full_name": "o/r", "owner": {}, "default_branch": "main"}, ` +
				`"changes": {"owner": {"from": {"user": {}}}}}`, repoState},
		{"repository.deleted", `{"repository": {"id": 5}}`, "repository 5" + returns},

		{"star.created", `{"starred_at": "2026-01-01T00:00:00Z"` + inRepo + `}`,
			"star 5:6" + at + ", own, without repository.full_name user.login"},
		{"star.deleted", `{"starred_at": null` + inRepo + `}`, "star 5:6" + returns},
		{"watch.started", `{"a": 1` + inRepo + `}`,
			"ignored: a star under its older name; the event star contains the time"},

		{"workflow_run.requested workflow_run.in_progress workflow_run.completed",
			`{"workflow": {"id": 3}, "workflow_run": {"id": 9, "run_attempt": 1, ` + updated + `}}`,
			"workflow_run 9" + at + runIgnored},
		{"workflow_run.completed",
			`{"workflow": {"id": 3}, "workflow_run": {"id": 9, "run_attempt": 3, ` + updated + `}}`,
			"workflow_run 9, at 1767225600000002/1000000, rank 1" + runIgnored},
		{"workflow_run.completed",
			`{"workflow": {}, "workflow_run": {"id": 9, "run_attempt": 9223372036854775807, ` + updated + `}}`,
			"workflow_run 9, at 1767225600999999/1000000, rank 1" + runIgnored},
		{"workflow_run.completed", `{"workflow": {}, "workflow_run": {"id": 9, "run_attempt": -7, ` + updated + `}}`,
			"workflow_run 9" + at + runIgnored},
		{"workflow_run.completed", `{"workflow": {}, "workflow_run": {"id": 9, ` + updated + `}}`,
			"workflow_run 9" + at + runIgnored},
		{"workflow_job.queued workflow_job.waiting workflow_job.in_progress workflow_job.completed",
			`{"workflow_job": {"id": 9, "started_at": "2026-01-01T00:00:00Z"}, "deployment": {}}`,
			"workflow_job 9" + clock},
		{"check_run.created check_run.completed", `{"check_run": {"id": 9, "completed_at": "2026-01-01T00:00:00Z"}}`,
			"check_run 9" + clock},
		{"check_run.rerequested check_run.requested_action", `{"check_run": {"id": 9}}`,
			"ignored: a user requests a new run or presses a button, which does not change the object; the " +
				"result has an event of its own"},
		{"check_suite.requested check_suite.rerequested check_suite.completed",
			`{"check_suite": {"id": 9, ` + updated + `}}`,
			"check_suite 9" + at +
				", own, without app latest_check_runs_count pull_requests repository rerequestable runs_rerequestable"},
		{"deployment.created", `{"deployment": {"id": 9, ` + updated + `}, "workflow": null, "workflow_run": null}`,
			"deployment 9" + at + ", own, without performed_via_github_app"},
		{"deployment_status.created",
			`{"deployment": {"id": 9, "updated_at": "2020-01-01T00:00:00Z"}, "deployment_status": {"id": 10, ` +
				updated + `}, "check_run": {}}`,
			"deployment_status 10" + at + ", own, without performed_via_github_app"},

		{"installation.created installation.suspend installation.unsuspend installation.new_permissions_accepted",
			`{"installation": {"id": 9, "account": {}, "app_id": 1, ` + updated +
				`}, "repositories": [], "requester": null}`, "installation 9" + at + ", own, may not advance"},
		{"installation.created", `{"installation": {"id": 9, "account": {}, "app_id": 1, "updated_at": 1767225600}}`,
			"installation 9" + at + ", own, may not advance"},
		{"installation.created",
			`{"installation": {"id": 9, "account": {}, "app_id": 1, "updated_at": "2026-01-01T01:00:00.999+01:00"}}`,
			"installation 9" + at + ", own, may not advance"},
		{"installation.deleted", `{"installation": {"id": 9, "account": {}, "app_id": 1}, "repositories": []}`,
			"installation 9" + deleted},
		{"installation_repositories.added installation_repositories.removed",
			`{"installation": {"id": 9, "account": {}, ` + updated +
				`}, "repositories_added": [], "repositories_removed": []}`,
			"installation 9, partial: the body contains the added and removed repositories, not all repositories"},
		{"installation_target.renamed",
			`{"installation": {"id": 9}, "account": {"id": 3}, "target_type": "Organization"}`,
			"installation 9, partial: the account of the installation was renamed; the body contains only the " +
				"installation's id"},

		{"member.added member.edited member.removed",
			`{"member": {"id": 9}, "changes": {"permission": {"from": "read"}}` + inRepo + `}`,
			"member 5:9, partial: the body contains a change of the member's permission, without a time"},
		{"membership.added membership.removed", `{"member": {"id": 9}, "team": {"id": 4}, "scope": "team"}`,
			"membership 4:9" + clock},
		{"team.created team.edited", `{"team": {"id": 9}}`, "team 9" + clock},
		{"team.deleted", `{"team": {"id": 9}, "organization": {}, "sender": {}}`, "team 9" + deleted},
		{"team.added_to_repository team.removed_from_repository", `{"team": {"id": 9}` + inRepo + `}`,
			"team_repository 9:5" + clock},
		{"label.created label.edited label.archived label.unarchived", `{"label": {"id": 9}` + inRepo + `}`,
			"label 9" + clock},
		{"label.deleted", `{"label": {"id": 9}` + inRepo + `}`, "label 9" + deleted},
		{"milestone.created milestone.edited milestone.closed milestone.opened",
			`{"milestone": {"id": 9, ` + updated + `}` + inRepo + `}`,
			"milestone 9" + at + ", own, without open_issues closed_issues"},
		{"milestone.deleted", `{"milestone": {"id": 9}` + inRepo + `}`,
			"milestone 9" + deleted + ", without open_issues closed_issues"},
		{"ping", `{"zen": "Tea first.", "hook": {"id": 9}}`,
			"ignored: GitHub tests the address of a new webhook; this is not an object"},
		{"meta.deleted", `{"hook_id": 9, "hook": {"id": 9}}`,
			"ignored: the webhook itself was deleted; GitHub sends nothing more to this address through it"},

		// Events that the table does not know.
		{"discussion.created", `{"discussion": {"id": 9, ` + updated + `}}`,
			"discussion 9, partial: the event discussion is unknown, so its body may be part of an object"},
		{"security_comment.created", `{"comment": {"id": 9}}`,
			"security_comment 9, partial: the event security_comment is unknown, so its body may be part of an object"},
		{"pull_request_review_comment.created pull_request_review_comment.edited",
			`{"comment": {"id": 9, ` + updated + `}, ` + pull + inRepo + `}`,
			"pull_request_review_comment 9" + at + ", own" + lineIgnored},
		{"pull_request_review_comment.deleted", `{"comment": {"id": 9, ` + updated + `}, ` + pull + inRepo + `}`,
			"pull_request_review_comment 9" + deleted + lineIgnored},
		{"pull_request_review_comment.created", `{"comment": {"id": 9, ` + updated + `}, ` + issue + `}`,
			"dead: a body of the event pull_request_review_comment has a member pull_request, but this one has " +
				"none: the event's name is not signed, so it is not trusted"},
		{"commit_comment.created", `{"comment": {"id": 9, ` + updated + `}` + inRepo + `}`,
			"commit_comment 9" + at + ", own" + commentIgnored},
		{"commit_comment.created", `{"comment": {"id": 9, ` + updated + `}, ` + pull + `}`,
			"dead: the body has a member \"pull_request\", which no body of the event commit_comment has: the " +
				"event's name is not signed, so it is not trusted"},
		{"fork", `{"forkee": {"id": 9}` + inRepo + `}`,
			"ignored: the event fork is unknown, and its body has no object fork with an id"},
		{"organization.member_added", `{"membership": {}, "organization": {"id": 9}}`,
			"ignored: the event organization is unknown, and its body has no object organization with an id"},
		{"gizmo.made", `{"gizmo": {"id": "9"}}`,
			"ignored: the event gizmo is unknown, and its body has no object gizmo with an id"},
		{"unknown", `{` + issue + `}`,
			"dead: the delivery has no readable event name; a proxy may have dropped the X-Github-Event header"},
	}
	tested := map[string]bool{}
	for _, test := range tests {
		for eventType := range strings.FieldsSeq(test.types) {
			tested[eventType] = true
			if got := observed(eventType, test.body); got != test.want {
				t.Errorf("%s %s:\n got %s\nwant %s", eventType, test.body, got, test.want)
			}
		}
	}
	for _, eventType := range github.Types() {
		if !tested[eventType] {
			t.Errorf("no test of %s", eventType)
		}
	}
}
