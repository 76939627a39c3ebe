package github

import (
	"encoding/json"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// shape reads the bodies of an event whose object is not one of their members.
type shape interface {
	// name returns the object's id if the rule's ids do not name it, else "".
	name(root *canonical.Value) string
	// fill adds the state to an observation that has its version, or removes the version.
	fill(o *provider.Observation, root *canonical.Value) error
}

// ref is a branch or a tag, and the commits before and after a push.
type ref struct{}

// name returns the repository's id and the ref's full name. A push contains that name. The creation
// and the delete of a ref contain its short name and its kind.
func (ref) name(root *canonical.Value) string {
	repository, name := number(root.Get("repository", "id")), text(root, "ref")
	switch text(root, "ref_type") {
	case "branch":
		name = "refs/heads/" + name
	case "tag":
		name = "refs/tags/" + name
	}
	if repository == "" || !strings.HasPrefix(name, "refs/") {
		return ""
	}
	return repository + ":" + name
}

// fill reads a push. Every push contains the commit before and the commit after, so pushes of one
// second are ordered by these. The push that creates a ref starts from no commit, which is no
// state, so it gives no order.
func (ref) fill(o *provider.Observation, root *canonical.Value) error {
	old, now := text(root, "before"), text(root, "after")
	if !isCommit(now) {
		return newDead("a push contains the commit of its ref after it, and this one contains %.64q", now)
	}
	o.OwnVersion = false // pushed_at is the time of the repository's last push, not of the ref's
	state := func(commit string) *canonical.Value {
		return toValue(struct {
			Ref        string          `json:"ref"`
			Repository json.RawMessage `json:"repository_id"`
			Commit     string          `json:"sha"`
		}{text(root, "ref"), root.Get("repository", "id").Raw(), commit})
	}
	if isCommit(old) && !isNone(old) {
		o.Before = state(old)
	}
	if isNone(now) {
		o.Deleted = true
		return nil
	}
	o.State = state(now)
	return nil
}

// isCommit reports whether a text can be the id of a commit, or stand for none.
func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// isNone reports whether an id stands for no commit.
func isNone(s string) bool { return strings.Trim(s, "0") == "" }

// star records that a user has starred a repository.
type star struct{}

func (star) name(*canonical.Value) string { return "" }

// fill takes both names from the copies in the body. They are only informative.
func (star) fill(o *provider.Observation, root *canonical.Value) error {
	o.State = toValue(map[string]any{
		"starred_at": json.RawMessage(root.Get("starred_at").Raw()),
		"repository": named(root.Get("repository"), "full_name"),
		"user":       named(root.Get("sender"), "login"),
	})
	// Both can be renamed without a new version of the star.
	o.IgnoredPaths = []string{"repository.full_name", "user.login"}
	return nil
}

// named reduces a copy in a body to its id and its name.
func named(v *canonical.Value, name string) map[string]any {
	return map[string]any{"id": json.RawMessage(v.Get("id").Raw()), name: text(v, name)}
}
