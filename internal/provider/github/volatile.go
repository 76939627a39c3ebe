package github

// What follows is left out when states of one version are compared: fields that change without a new updated_at, and those that either GitHub's API or its
// webhooks tell alone, as far as GitHub's own descriptions of both say (https://github.com/github/rest-api-description, https://docs.github.com/en/webhooks).
// A field that is missing here makes an object differ once, when it is first read after a webhook: the look, which is later, then wins.
var (
	volatileIssue = []string{"reactions", "author_association", "sub_issues_summary", "issue_dependencies_summary",
		"milestone.open_issues", "milestone.closed_issues", "milestone.updated_at", "closed_by", "parent_issue_url", "performed_via_github_app", "pinned_comment"}
	volatilePull = []string{"mergeable", "mergeable_state", "rebaseable", "merge_commit_sha", "author_association", "base.repo", "head.repo", "stack",
		"milestone.open_issues", "milestone.closed_issues", "milestone.updated_at",
		"allow_auto_merge", "allow_update_branch", "delete_branch_on_merge", "merge_commit_message", "merge_commit_title",
		"squash_merge_commit_message", "squash_merge_commit_title", "use_squash_pr_title_as_default"}
	volatileComment = []string{"reactions", "author_association", "performed_via_github_app", "pin"}
	// What follows the pull request's commits is its place in the newest of them.
	volatileReviewComment = []string{"reactions", "author_association", "commit_id", "line", "position", "side", "start_line", "start_side"}
	volatileRelease       = []string{"reactions", "short_description_html", "is_short_description_html_truncated", "mentions_count", "assets.download_count"}
	volatileRepository    = []string{"forks", "forks_count", "open_issues", "open_issues_count", "pushed_at", "size", "stargazers_count", "watchers", "watchers_count",
		"network_count", "subscribers_count", "permissions", "role_name", "temp_clone_token", "organization", "parent", "source", "template_repository",
		"security_and_analysis", "custom_properties", "code_of_conduct", "master_branch", "anonymous_access_enabled",
		"allow_auto_merge", "allow_merge_commit", "allow_rebase_merge", "allow_squash_merge", "allow_update_branch", "delete_branch_on_merge",
		"merge_commit_message", "merge_commit_title", "squash_merge_commit_message", "squash_merge_commit_title", "use_squash_pr_title_as_default"}
	volatileRun        = []string{"head_repository", "head_repository_id", "pull_requests", "referenced_workflows", "repository"}
	volatileSuite      = []string{"app", "latest_check_runs_count", "pull_requests", "repository", "rerequestable", "runs_rerequestable"}
	volatileDeployment = []string{"performed_via_github_app"}
)

// LeftOut are the fields that states of a type are compared without, by type, of every type that the table mirrors.
func (GitHub) LeftOut() map[string][]string {
	out := map[string][]string{}
	for _, r := range rows {
		if len(r.whole) > 0 {
			out[r.object] = append(out[r.object], r.volatile...)
		}
	}
	return out
}
