package github

import (
	"bytes"
	"embed"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

//go:embed samples/*.json
var files embed.FS

// step is one event of the samples' story: a leaking kettle, and its repair.
type step struct {
	// event is the type: the event's name and its action.
	event string
	// member is the member of the body for the object in the file. Empty means that the file is the
	// body.
	member, file string
	// change is laid over the object.
	change string
	// rest are further members of the body. A text in angle brackets is replaced by the file of
	// that name.
	rest string
	// app means that the event belongs to no repository.
	app bool
}

var story = []step{
	{event: "issues.opened", member: "issue", file: "issue"},
	{event: "issues.edited", member: "issue", file: "issue",
		change: `{"updated_at": "2026-01-01T08:10:00Z", "title": "The kettle leaks at the lid"}`,
		rest:   `{"changes": {"title": {"from": "The kettle leaks"}}}`},
	{event: "issues.closed", member: "issue", file: "issue",
		change: `{"updated_at": "2026-01-01T09:30:00Z", "title": "The kettle leaks at the lid",
		"state": "closed", "state_reason": "completed", "closed_at": "2026-01-01T09:30:00Z", "comments": 1}`},
	{event: "issues.deleted", member: "issue", file: "issue",
		change: `{"updated_at": "2026-01-01T09:30:00Z", "title": "The kettle leaks at the lid",
		"state": "closed", "state_reason": "completed", "closed_at": "2026-01-01T09:30:00Z", "comments": 1}`},
	{event: "issue_comment.created", member: "comment", file: "issue_comment", rest: `{"issue": "<issue>"}`},
	{event: "pull_request.opened", member: "pull_request", file: "pull_request", rest: `{"number": 8}`},
	{event: "pull_request.synchronize", member: "pull_request", file: "pull_request",
		change: `{"updated_at": "2026-01-01T09:15:00Z", "commits": 2,
		"additions": 15, "statuses_url": "https://api.github.com/repos/octo-demo/kettle/statuses/1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e"}`,
		rest: `{"number": 8, "before": "1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d", ` +
			`"after": "1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e1e"}`},
	{event: "pull_request.closed", member: "pull_request", file: "pull_request",
		change: `{"updated_at": "2026-01-01T09:30:00Z", "commits": 2, "additions": 15,
		"state": "closed", "merged": true, "merged_at": "2026-01-01T09:30:00Z", "closed_at": "2026-01-01T09:30:00Z",
		"merge_commit_sha": "2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e"}`, rest: `{"number": 8}`},
	{event: "push", file: "push"},
	{event: "create",
		rest: `{"ref": "seal", "ref_type": "branch", "master_branch": "main", ` +
			`"description": "Boils water", "pusher_type": "user"}`},
	{event: "workflow_run.completed", member: "workflow_run", file: "workflow_run", rest: `{"workflow": "<workflow>"}`},
	{event: "release.published", member: "release", file: "release"},
	{event: "star.created", rest: `{"starred_at": "2026-01-02T10:30:00Z"}`},
	{event: "repository.renamed", member: "repository", file: "repository",
		change: `{"updated_at": "2026-01-03T11:00:00Z", "name": "samovar",
		"full_name": "octo-demo/samovar", "html_url": "https://github.com/octo-demo/samovar", "url": "https://api.github.com/repos/octo-demo/samovar"}`,
		rest: `{"changes": {"repository": {"name": {"from": "kettle"}}}}`},
	{event: "member.added", member: "member", file: "member",
		rest: `{"changes": {"permission": {"to": "write"}, "role_name": {"to": "write"}}}`},
	{event: "installation.created", member: "installation", file: "installation", app: true, rest: `{"requester": null,
		"repositories": [{"id": 700500, "node_id": "R_demo700500", "name": "kettle", ` +
		`"full_name": "octo-demo/kettle", "private": false}]}`},
	{event: "ping", member: "hook", file: "hook", rest: `{"zen": "Tea first.", "hook_id": 700450}`},
}

// Samples returns the events of the story. They have no delivery id: MakeVariant sets one, and
// otherwise Sign makes one from type and body.
func (GitHub) Samples() []provider.Sample {
	out := make([]provider.Sample, len(story))
	for i, s := range story {
		out[i] = provider.Sample{Type: s.event, Body: s.body()}
	}
	return out
}

// body returns the event as GitHub sends it, compact.
func (s step) body() []byte {
	root := map[string]json.RawMessage{"sender": file("user", "")}
	if !s.app {
		root["repository"] = file("repository", "")
	}
	if _, action, ok := strings.Cut(s.event, "."); ok {
		root["action"] = provider.SampleJSON(action, "")
	}
	switch {
	case s.member != "":
		root[s.member] = file(s.file, s.change)
	case s.file != "":
		maps.Copy(root, provider.SampleObject(files, "samples/"+s.file+".json", s.change))
	}
	maps.Copy(root, provider.SampleObject(files, "", s.rest))
	for name, value := range root {
		if inner, ok := bytes.CutPrefix(value, []byte(`"<`)); ok {
			root[name] = file(strings.TrimSuffix(string(inner), `>"`), "")
		}
	}
	return provider.SampleJSON(root, "")
}

func file(name, change string) []byte {
	return provider.SampleJSON(provider.SampleObject(files, "samples/"+name+".json", change), "")
}

// Sign makes a delivery as GitHub sends it as JSON, with the source's first secret.
func (GitHub) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	d := &provider.Delivery{Header: http.Header{}, Body: s.Body, ReceivedAt: at}
	event, _, _ := strings.Cut(s.Type, ".")
	id := s.ID
	if id == "" {
		id = provider.SampleUUID(provider.ContentKey(s.Type, "", s.Body))
	}
	d.Header.Set("Accept", "*/*")
	d.Header.Set("Content-Type", "application/json")
	d.Header.Set("User-Agent", "GitHub-Hookshot/0000000")
	d.Header.Set(eventHeader, event)
	d.Header.Set(deliveryHeader, id)
	d.Header.Set("X-Github-Hook-Id", "700450")
	if err := provider.SignDelivery(src, d, &scheme, at); err != nil {
		return nil, err
	}
	return d, nil
}
