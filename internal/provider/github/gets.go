package github

import (
	"encoding/json"
	"net/url"
	"regexp"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// place is where GitHub reads objects of a type.
type place struct {
	// below is what follows the repository's address in the object's own address, which all bodies of it carry as url.
	below *regexp.Regexp
	// among is a list below the repository that a key can read if it can read the object; empty: nothing shows that the object would be seen.
	among string
	// numbered: the address ends in the object's id.
	numbered bool
}

// gets are the types that can be read. The mirror keeps objects by id, and GitHub reads them by repository and number or name, so the address is taken from
// what is known of the object. Where a repository was renamed or passed on, GitHub leads from the old address to the new one.
//
// Left out are types that no GET reads, or not in the shape that webhooks have:
//   - pull_request_review: its state is spelled in capitals and without updated_at;
//   - ref, star, member, membership, team_repository: what the mirror keeps of them is made of several members of an event, and is no object of the API;
//   - team: read by the organization's and the team's name, which its bodies do not tell;
//   - installation: read by the app itself, with a key that ends after ten minutes.
//
// A repository that answers 404 was deleted, or the key may no longer see it: nothing tells which but the event repository.deleted. A label is read by its name
// alone, which a change of name takes from it. A release that is a draft is shown and listed to those alone who may push; a reader's key gets 404 for it.
var gets = map[string]place{
	"repository":                  {below: regexp.MustCompile(`^$`)},
	"label":                       {below: regexp.MustCompile(`^/labels/[^/?#]+$`)},
	"issue":                       {below: regexp.MustCompile(`^/issues/[1-9]\d*$`), among: "/issues"},
	"pull_request":                {below: regexp.MustCompile(`^/pulls/[1-9]\d*$`), among: "/pulls"},
	"milestone":                   {below: regexp.MustCompile(`^/milestones/[1-9]\d*$`), among: "/milestones"},
	"issue_comment":               {below: regexp.MustCompile(`^/issues/comments/[1-9]\d*$`), among: "/issues/comments", numbered: true},
	"pull_request_review_comment": {below: regexp.MustCompile(`^/pulls/comments/[1-9]\d*$`), among: "/pulls/comments", numbered: true},
	"commit_comment":              {below: regexp.MustCompile(`^/comments/[1-9]\d*$`), among: "/comments", numbered: true},
	"release":                     {below: regexp.MustCompile(`^/releases/[1-9]\d*$`), among: "/releases", numbered: true},
	"deployment":                  {below: regexp.MustCompile(`^/deployments/[1-9]\d*$`), among: "/deployments", numbered: true},
	"deployment_status":           {below: regexp.MustCompile(`^/deployments/[1-9]\d*/statuses/[1-9]\d*$`), among: "/deployments", numbered: true},
	"workflow_run":                {below: regexp.MustCompile(`^/actions/runs/[1-9]\d*$`), among: "/actions/runs", numbered: true},
	"workflow_job":                {below: regexp.MustCompile(`^/actions/jobs/[1-9]\d*$`), among: "/actions/runs", numbered: true},
	"check_suite":                 {below: regexp.MustCompile(`^/check-suites/[1-9]\d*$`), numbered: true},
	"check_run":                   {below: regexp.MustCompile(`^/check-runs/[1-9]\d*$`), numbered: true},
}

// owned is an address of something of a repository, whatever the API's own address is: .../repos/OWNER/NAME/...
var owned = regexp.MustCompile(`/repos/([A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100})(/[^?#]*)?$`)

// Locate reads an object at the address that the newest event gives it, else its state.
func (GitHub) Locate(_ *provider.API, _, objectType, objectID string, state []byte, newest *provider.Stored) (call, proof provider.Call, ok bool) {
	at, ok := gets[objectType]
	if !ok {
		return call, proof, false
	}
	repository, below, found := at.split(objectID, toldBy(newest, objectType, objectID))
	if !found {
		repository, below, found = at.split(objectID, addressIn(state))
	}
	if !found {
		return call, proof, false
	}
	switch {
	case objectType == "release" && mayBeDraft(state, newest): // its list is readable, and hides it
	case at.among != "":
		proof = provider.Call{Path: "/repos/" + repository + at.among, Query: url.Values{"per_page": {"1"}}}
	case objectType == "repository" && newest != nil && newest.Type == "repository.deleted":
		proof = provider.Call{Path: "/"}
	}
	return provider.Call{Path: "/repos/" + repository + below}, proof, true
}

// split takes an object's address apart, false where it is none of its type's.
func (at place) split(objectID, address string) (repository, below string, ok bool) {
	m := owned.FindStringSubmatch(address)
	if m == nil || !isRepository(m[1]) || !at.below.MatchString(m[2]) || at.numbered && !strings.HasSuffix(m[2], "/"+objectID) {
		return "", "", false
	}
	if name := m[2][strings.LastIndexByte(m[2], '/')+1:]; name == "." || name == ".." {
		return "", "", false
	}
	return m[1], m[2], true
}

// addressIn is an object's url.
func addressIn(state []byte) string {
	var object struct {
		URL string `json:"url"`
	}
	_ = json.Unmarshal(state, &object)
	return object.URL
}

// toldBy is the url of the object in an event of it.
func toldBy(e *provider.Stored, objectType, objectID string) string {
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

// mayBeDraft: what is known of a release does not rule out that it is a draft now. Publishing and its end have events of their own.
func mayBeDraft(state []byte, newest *provider.Stored) bool {
	var kept struct {
		Draft bool `json:"draft"`
	}
	_ = json.Unmarshal(state, &kept)
	if kept.Draft || newest == nil {
		return kept.Draft
	}
	root, err := read(newest.Body)
	if err != nil {
		return true
	}
	defer root.Release()
	draft, told := root.Get("release", "draft").Bool()
	return draft || newest.Type == "release.unpublished" || newest.Type == "release.created" && !told
}

// rowOf is how whole objects of a type are read.
func rowOf(objectType string) *row {
	var first *row
	for i := range rows {
		switch r := &rows[i]; {
		case r.object != objectType || r.shape != nil:
		case len(r.whole) > 0:
			return r
		case first == nil:
			first = r
		}
	}
	return first
}

// asMember is an object as the member of a body.
func asMember(member string, object []byte) (*canonical.Value, error) {
	body := append([]byte(`{"`+member+`":`), object...)
	return provider.ReadObject(append(body, '}'))
}
