package oracles_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
)

// told is a webhook of GitHub's description.
type told struct {
	event, action string
	body          *schema
}

// tells are the webhooks of the events that we read.
func (d *openapi) tells() (all []told) {
	for _, hook := range d.Webhooks {
		event, _, _ := strings.Cut(strings.ReplaceAll(hook.Post.ID, "-", "_"), "/")
		event = strings.TrimSuffix(event, ".")
		body := hook.Post.RequestBody.Content["application/json"].Schema
		t := told{event: event, body: body}
		if action := d.at(body, "action"); action != nil && len(action.Enum) == 1 {
			t.action = action.Enum[0].(string)
		}
		if _, ok := readEvents[event]; ok {
			all = append(all, t)
		}
	}
	return all
}

// readEvents are the events that we read, by the member that holds their object, where it is one
// that we read from the API too.
var readEvents = map[string]string{
	"check_run": "check_run", "check_suite": "check_suite", "create": "", "delete": "", "deployment": "deployment",
	"deployment_status": "deployment_status", "installation": "",
	"installation_repositories": "", "installation_target": "", "issue_comment": "comment", "issues": "issue",
	"label": "label", "member": "", "membership": "", "meta": "", "milestone": "milestone",
	"ping": "", "pull_request": "pull_request", "pull_request_review": "", "push": "", "release": "release",
	"repository": "repository", "star": "", "team": "", "watch": "",
	"workflow_job": "workflow_job", "workflow_run": "workflow_run",
}

// observed is what we make of the description's example of a webhook.
func (d *openapi) observed(h told) (provider.Observation, error) {
	body := d.example(h.body, 0).(map[string]any)
	switch h.event { // of which the description does not say what they look like
	case "push":
		body["before"], body["after"], body["ref"] = strings.Repeat("a", 40), strings.Repeat("b", 40), "refs/heads/main"
	}
	if h.action != "" {
		h.event += "." + h.action
	}
	return github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: h.event, ReceivedAt: time.Now(),
		Body: must(json.Marshal(body))})
}

// Each action of the events that we read we know, and a body as GitHub describes it we take for
// what it is: none has a member by which we would take it for another event's, or lacks one that we
// want.
func TestGitHubOpenAPI_responses_haveWhatWeRead(t *testing.T) {
	t.Parallel()
	d := described(t)
	seen := map[string]bool{}
	for _, h := range d.tells() {
		seen[h.event] = true
		o, err := d.observed(h)
		if err != nil || strings.Contains(o.Partial, "is not known here") || o.Ignored == "" && o.Partial == "" &&
			!o.Deleted && o.State == nil {
			t.Errorf("%s %s: %+v (%v)", h.event, h.action, o, err)
		}
	}
	for event := range readEvents {
		if !seen[event] {
			t.Errorf("GitHub describes no event %s", event)
		}
	}
}

// merely are members of which the description says more than there is, or less: why they may be
// compared, or left out.
var merely = map[string]string{
	"issue.body_html": otherMedia, "issue.body_text": otherMedia, "issue_comment.body_html": otherMedia,
	"issue_comment.body_text": otherMedia,
	"release.body_html":       otherMedia, "release.body_text": otherMedia,
	"issue.repository": otherList, "repository.starred_at": otherList, "repository.role_name": otherList,
	"release.is_short_description_html_truncated": otherAPI, "release.short_description_html": otherAPI,
}

const (
	otherMedia = "told in a media type that we do not ask for"
	otherList  = "told of an object that is listed for a user, across repositories"
	otherAPI   = "told in GitHub's public timeline of the same event"
)

// What a webhook alone or the API alone tells of an object that both tell whole is left out where
// states are compared, and what is left out one of them tells.
func TestGitHubOpenAPI_eventAndResponse_areAlike(t *testing.T) {
	t.Parallel()
	d := described(t)
	sent, leftOut := map[string]*schema{}, map[string][]string{}
	for _, h := range d.tells() {
		o, err := d.observed(h)
		if err != nil || o.State == nil || o.Deleted || readable[o.ObjectType] == "" {
			continue
		}
		object := d.at(h.body, readEvents[h.event])
		if sent[o.ObjectType] != nil { // by several, of which each may tell more than the others
			object = d.flat(&schema{AllOf: []*schema{sent[o.ObjectType], object}})
		}
		sent[o.ObjectType], leftOut[o.ObjectType] = object, o.IgnoredPaths
	}
	if got := slices.Sorted(maps.Keys(sent)); !slices.Equal(got, wholly) {
		t.Errorf("told whole by both are %v, not %v", got, wholly)
	}
	for objectType, out := range leftOut {
		read, _ := d.asRead(t, objectType)
		alone := func(one, other *schema, by string) {
			for _, name := range slices.Sorted(maps.Keys(d.flat(one).Properties)) {
				if d.at(other, name) == nil && !slices.Contains(out, name) && merely[objectType+"."+name] == "" {
					t.Errorf("%s alone tell %s.%s: leave it out, or say why it is compared", by, objectType, name)
				}
			}
		}
		alone(sent[objectType], read, "webhooks")
		alone(read, sent[objectType], "answers")
		for _, path := range out {
			if d.at(sent[objectType], path) == nil && d.at(read, path) == nil && merely[objectType+"."+path] == "" {
				t.Errorf("nobody tells %s.%s, which is left out", objectType, path)
			}
		}
	}
}

// wholly are the types that webhooks and the API both tell whole.
var wholly = []string{"check_suite", "deployment", "deployment_status", "issue", "issue_comment", "milestone",
	"pull_request", "release", "repository", "workflow_run"}
