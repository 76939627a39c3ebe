package github

import (
	"encoding/json"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// shape reads the bodies of an event whose object is not one of their members.
type shape interface {
	// name is the object's id where the row's ids do not name it, else "".
	name(root *canonical.Value) string
	// fill adds the state to an observation that has its version; or takes the version back.
	fill(o *provider.Observation, root *canonical.Value) error
}

// ref is a branch or a tag: where a push moved it, and from where.
type ref struct{}

// name is the repository's id and the ref's full name. A push says that name; the creation and the delete of a ref say its
// short name and what it is.
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

// fill reads a push. Every push tells the commit before and the commit after, so pushes of one second are put in order by what
// they lead from and to. The push that makes a ref leads from nothing, which is no state, and so tells no order.
func (ref) fill(o *provider.Observation, root *canonical.Value) error {
	old, now := text(root, "before"), text(root, "after")
	if !isCommit(now) {
		return dead("a push says what commit its ref is at after it, and this one says %.64q", now)
	}
	o.Own = false // the repository's time of its last push, and not the ref's own
	state := func(commit string) *canonical.Value {
		return made(struct {
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

// isCommit tells whether a text can be the id of a commit, or of none.
func isCommit(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// isNone tells whether an id stands for no commit.
func isNone(s string) bool { return strings.Trim(s, "0") == "" }

// star is that a user has starred a repository.
type star struct{}

func (star) name(*canonical.Value) string { return "" }

// fill takes the names of both from the copies in the body: they are there to be read, and decide nothing.
func (star) fill(o *provider.Observation, root *canonical.Value) error {
	o.State = made(map[string]any{
		"starred_at": json.RawMessage(root.Get("starred_at").Raw()),
		"repository": named(root.Get("repository"), "full_name"),
		"user":       named(root.Get("sender"), "login"),
	})
	// Both can be renamed, which gives the star no new version.
	o.Volatile = []string{"repository.full_name", "user.login"}
	return nil
}

// named is a copy in a body cut down to its id and its name.
func named(v *canonical.Value, name string) map[string]any {
	return map[string]any{"id": json.RawMessage(v.Get("id").Raw()), name: text(v, name)}
}
