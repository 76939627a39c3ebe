package github

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// objectPath says where GitHub reads objects of a type.
type objectPath struct {
	// below is the part of the object's address after the repository's. All bodies of the object
	// contain its address as url.
	below *regexp.Regexp
	// among is a list below the repository that a key can read if it can read the object. Empty
	// means that nothing proves that the object would be visible.
	among string
	// numbered means that the address ends in the object's id.
	numbered bool
}

// gets are the types that can be read. The mirror stores objects by id, and GitHub reads them by
// repository and number or name, so the address is taken from the object's state or events. If a
// repository was renamed or transferred, GitHub redirects from the old address to the new one.
//
// notRead has the other types.
//
// A repository that gives 404 was deleted, or the key may no longer see it. Only the event
// repository.deleted distinguishes these. A label is read by its name alone, which changes when it
// is renamed. A draft release is shown and listed only to users who may push; for a read-only key
// it gives 404.
var gets = map[string]objectPath{
	"repository":   {below: regexp.MustCompile(`^$`)},
	"label":        {below: regexp.MustCompile(`^/labels/[^/?#]+$`)},
	"issue":        {below: regexp.MustCompile(`^/issues/[1-9]\d*$`), among: "/issues"},
	"pull_request": {below: regexp.MustCompile(`^/pulls/[1-9]\d*$`), among: "/pulls"},
	"milestone":    {below: regexp.MustCompile(`^/milestones/[1-9]\d*$`), among: "/milestones"},
	"issue_comment": {below: regexp.MustCompile(`^/issues/comments/[1-9]\d*$`), among: "/issues/comments",
		numbered: true},
	"pull_request_review_comment": {below: regexp.MustCompile(`^/pulls/comments/[1-9]\d*$`), among: "/pulls/comments",
		numbered: true},
	"commit_comment": {below: regexp.MustCompile(`^/comments/[1-9]\d*$`), among: "/comments",
		numbered: true},
	"release": {below: regexp.MustCompile(`^/releases/[1-9]\d*$`), among: "/releases",
		numbered: true},
	"deployment": {below: regexp.MustCompile(`^/deployments/[1-9]\d*$`), among: "/deployments",
		numbered: true},
	"deployment_status": {below: regexp.MustCompile(`^/deployments/[1-9]\d*/statuses/[1-9]\d*$`),
		among: "/deployments", numbered: true},
	"workflow_run": {below: regexp.MustCompile(`^/actions/runs/[1-9]\d*$`), among: "/actions/runs",
		numbered: true},
	"workflow_job": {below: regexp.MustCompile(`^/actions/jobs/[1-9]\d*$`), among: "/actions/runs",
		numbered: true},
	"check_suite": {below: regexp.MustCompile(`^/check-suites/[1-9]\d*$`), numbered: true},
	"check_run":   {below: regexp.MustCompile(`^/check-runs/[1-9]\d*$`), numbered: true},
}

// repositoryPath matches the address of an object of a repository, whatever the API's own address
// is: .../repos/OWNER/NAME/...
var repositoryPath = regexp.MustCompile(`/repos/([A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100})(/[^?#]*)?$`)

// Locate reads an object at the address in its newest event, or else in its state.
func (GitHub) Locate(_ *provider.API, _, objectType, objectID string, state []byte, newest *provider.StoredEvent) (call,
	check provider.Call, ok bool) {
	at, ok := gets[objectType]
	if !ok {
		return call, check, false
	}
	repository, below, found := at.split(objectID, addressFromEvent(newest, objectType, objectID))
	if !found {
		repository, below, found = at.split(objectID, addressFromState(state))
	}
	if !found {
		return call, check, false
	}
	switch {
	case objectType == "release" && mayBeDraft(state, newest): // the list is readable but does not contain it
	case at.among != "":
		check = provider.Call{Path: "/repos/" + repository + at.among, Query: url.Values{"per_page": {"1"}}}
	case objectType == "repository" && newest != nil && newest.Type == "repository.deleted":
		check = provider.Call{Path: "/"}
	}
	return provider.Call{Path: "/repos/" + repository + below}, check, true
}

// split splits an object's address; ok is false if it is no address of its type.
func (at objectPath) split(objectID, address string) (repository, below string, ok bool) {
	m := repositoryPath.FindStringSubmatch(address)
	if m == nil || !isRepository(m[1]) || !at.below.MatchString(m[2]) || at.numbered &&
		!strings.HasSuffix(m[2], "/"+objectID) {
		return "", "", false
	}
	if name := m[2][strings.LastIndexByte(m[2], '/')+1:]; name == "." || name == ".." {
		return "", "", false
	}
	return m[1], m[2], true
}

// addressFromState returns an object's url.
func addressFromState(state []byte) string {
	var object struct {
		URL string `json:"url"`
	}
	_ = json.Unmarshal(state, &object)
	return object.URL
}

// addressFromEvent returns the object's url in an event.
func addressFromEvent(e *provider.StoredEvent, objectType, objectID string) string {
	if e == nil {
		return ""
	}
	root, err := read(e.Body)
	if err != nil {
		return ""
	}
	defer root.Release()
	event, _, _ := strings.Cut(e.Type, ".")
	r, _ := find(event, text(root, "action"))
	if r == nil || r.object != objectType || r.key(root) != objectID {
		return ""
	}
	return text(root, r.member, "url")
}

// mayBeDraft reports whether a release may be a draft now, as far as its state and newest event
// show. Publishing and unpublishing have events of their own.
func mayBeDraft(state []byte, newest *provider.StoredEvent) bool {
	var stored struct {
		Draft bool `json:"draft"`
	}
	_ = json.Unmarshal(state, &stored)
	if stored.Draft || newest == nil {
		return stored.Draft
	}
	root, err := read(newest.Body)
	if err != nil {
		return true
	}
	defer root.Release()
	draft, known := root.Get("release", "draft").Bool()
	return draft || newest.Type == "release.unpublished" || newest.Type == "release.created" && !known
}

// ruleOf returns the rule for whole objects of a type.
func ruleOf(objectType string) *eventRule {
	var first *eventRule
	for i := range eventRules {
		switch r := &eventRules[i]; {
		case r.object != objectType || r.shape != nil:
		case len(r.wholeActions) > 0:
			return r
		case first == nil:
			first = r
		}
	}
	return first
}

// wrapAsMember wraps an object as a member of a body.
func wrapAsMember(member string, object []byte) (*canonical.Value, error) {
	body := append([]byte(`{"`+member+`":`), object...)
	return provider.ReadObject(append(body, '}'))
}
