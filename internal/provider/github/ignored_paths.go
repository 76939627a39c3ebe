package github

// The comparison of states of one version ignores these fields. They change without a new
// updated_at, or only GitHub's API or only its webhooks contain them, according to GitHub's own
// descriptions (https://github.com/github/rest-api-description,
// https://docs.github.com/en/webhooks). If a field is missing here, an object differs once, when it
// is first refetched after a webhook. The refetch is later, so it wins.
var (
	ignoredInIssue = []string{"reactions", "author_association", "sub_issues_summary", "issue_dependencies_summary",
		"milestone.open_issues", "milestone.closed_issues", "milestone.updated_at", "closed_by", "parent_issue_url",
		"performed_via_github_app", "pinned_comment"}
	ignoredInPull = []string{"mergeable", "mergeable_state", "rebaseable", "merge_commit_sha", "author_association",
		"base.repo", "head.repo", "stack", "milestone.open_issues", "milestone.closed_issues", "milestone.updated_at",
		"allow_auto_merge", "allow_update_branch", "delete_branch_on_merge", "merge_commit_message",
		"merge_commit_title", "squash_merge_commit_message", "squash_merge_commit_title",
		"use_squash_pr_title_as_default"}
	ignoredInComment = []string{"reactions", "author_association", "performed_via_github_app", "pin"}
	// commit_id, line, position and side change with the pull request's newest commits.
	ignoredInReviewComment = []string{"reactions", "author_association", "commit_id", "line", "position", "side",
		"start_line", "start_side"}
	ignoredInRelease = []string{"reactions", "short_description_html", "is_short_description_html_truncated",
		"mentions_count", "assets.download_count"}
	ignoredInRepository = []string{"forks", "forks_count", "open_issues", "open_issues_count", "pushed_at", "size",
		"stargazers_count", "watchers", "watchers_count", "network_count", "subscribers_count", "permissions",
		"role_name", "temp_clone_token", "organization", "parent", "source", "template_repository",
		"security_and_analysis", "custom_properties", "code_of_conduct", "master_branch", "anonymous_access_enabled",
		"allow_auto_merge", "allow_merge_commit", "allow_rebase_merge", "allow_squash_merge", "allow_update_branch",
		"delete_branch_on_merge", "merge_commit_message", "merge_commit_title", "squash_merge_commit_message",
		"squash_merge_commit_title", "use_squash_pr_title_as_default"}
	ignoredInRun = []string{"head_repository", "head_repository_id", "pull_requests", "referenced_workflows",
		"repository"}
	ignoredInSuite = []string{"app", "latest_check_runs_count", "pull_requests", "repository", "rerequestable",
		"runs_rerequestable"}
	ignoredInDeployment = []string{"performed_via_github_app"}
)

// IgnoredPaths returns, for each mirrored type of the table, the fields that the comparison of
// states ignores.
func (GitHub) IgnoredPaths() map[string][]string {
	out := map[string][]string{}
	for _, r := range eventRules {
		if len(r.wholeActions) > 0 {
			out[r.object] = append(out[r.object], r.ignoredPaths...)
		}
	}
	return out
}
