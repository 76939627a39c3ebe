package oracles_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
)

// readable are the types that we read, and where GitHub's description has them.
var readable = map[string]string{
	"check_run":                   "/repos/{owner}/{repo}/check-runs/{check_run_id}",
	"check_suite":                 "/repos/{owner}/{repo}/check-suites/{check_suite_id}",
	"commit_comment":              "/repos/{owner}/{repo}/comments/{comment_id}",
	"deployment":                  "/repos/{owner}/{repo}/deployments/{deployment_id}",
	"deployment_status":           "/repos/{owner}/{repo}/deployments/{deployment_id}/statuses/{status_id}",
	"issue":                       "/repos/{owner}/{repo}/issues/{issue_number}",
	"issue_comment":               "/repos/{owner}/{repo}/issues/comments/{comment_id}",
	"label":                       "/repos/{owner}/{repo}/labels/{name}",
	"milestone":                   "/repos/{owner}/{repo}/milestones/{milestone_number}",
	"pull_request":                "/repos/{owner}/{repo}/pulls/{pull_number}",
	"pull_request_review_comment": "/repos/{owner}/{repo}/pulls/comments/{comment_id}",
	"release":                     "/repos/{owner}/{repo}/releases/{release_id}",
	"repository":                  "/repos/{owner}/{repo}",
	"workflow_job":                "/repos/{owner}/{repo}/actions/jobs/{job_id}",
	"workflow_run":                "/repos/{owner}/{repo}/actions/runs/{run_id}",
}

// named are the parts of a template that stand for something.
var named = regexp.MustCompile(`\{[a-z_]+\}`)

// filled is a path of a template.
func filled(template string) string {
	return named.ReplaceAllStringFunc(template, func(name string) string {
		switch name {
		case "{owner}", "{org}":
			return "octo-org"
		case "{repo}":
			return "kettle"
		}
		return "7"
	})
}

// knows: GitHub's description has the call, with each of its parameters.
func (d *openapi) knows(t *testing.T, c provider.Call) (*operation, string) {
	t.Helper()
	method := strings.ToLower(c.Method)
	if method == "" {
		method = "get"
	}
	op, template := d.operation(t, method, c.Path)
	if op == nil {
		t.Errorf("GitHub describes no %s %s", method, c.Path)
		return &operation{}, ""
	}
	for name, values := range c.Query {
		s := d.parameter(op, name)
		switch {
		case s == nil:
			t.Errorf("%s %s has no parameter %s", method, template, name)
		case len(values) != 1 || !s.takes(values[0]):
			t.Errorf("%s %s does not take %s=%v", method, template, name, values)
		}
	}
	return op, template
}

// takes tells whether a parameter of the schema can be the text.
func (s *schema) takes(text string) bool {
	switch {
	case len(s.Enum) > 0:
		return slices.Contains(s.Enum, any(text))
	case s.Type == "integer":
		_, err := strconv.Atoi(text)
		return err == nil
	case s.Format == "date-time":
		_, err := time.Parse("2006-01-02T15:04:05Z", text)
		return err == nil
	}
	return s.Type == "string"
}

// asRead is an example of a type's object as GitHub answers it, under the address that it is read
// by.
func (d *openapi) asRead(t *testing.T, objectType string) (s *schema, body []byte) {
	t.Helper()
	path := filled(readable[objectType])
	op, _ := d.operation(t, "get", path)
	if op == nil || op.answers() == nil {
		t.Fatalf("GitHub describes no answer of %s", path)
	}
	object := d.example(op.answers(), 0).(map[string]any)
	object["url"] = "https://api.github.com" + path
	return op.answers(), must(json.Marshal(object))
}

// Each object that we read, and each list by which we prove that a missing one would be seen,
// GitHub's description has where we ask for it, and what it answers we take for a whole object with
// a version, where it has one.
func TestGitHubOpenAPI_ourReads_areKnown(t *testing.T) {
	t.Parallel()
	d := described(t)
	timeless := []string{"check_run", "label", "workflow_job"}
	for objectType, template := range readable {
		_, body := d.asRead(t, objectType)
		call, proof, ok := github.GitHub{}.Locate(&provider.API{}, "", objectType, "7", body, nil)
		if !ok {
			t.Errorf("a %s is not read at %s", objectType, filled(template))
			continue
		}
		if _, at := d.knows(t, call); at != template {
			t.Errorf("a %s is read at %s, which GitHub describes as %q and not %q", objectType, call.Path, at, template)
		}
		if proof.Path != "" {
			d.knows(t, proof)
		}
		o, err := github.GitHub{}.Snapshot(&provider.Source{}, &provider.Snapshot{ObjectType: objectType, ObjectID: "7",
			Body: body})
		if err != nil || o.State == nil || o.HasAt == slices.Contains(timeless, objectType) {
			t.Errorf("the description's example of a %s is read as %+v (%v)", objectType, o, err)
		}
	}
	d.knows(t, github.GitHub{}.CredentialCheck(&provider.API{}, ""))
}

// Each list that we read, GitHub's description has, from its first page to one since a time, and
// its elements we take for objects: where we take them for whole, they have all that the answer to
// the call for one has, but for what is not compared.
func TestGitHubOpenAPI_ourLists_areKnown(t *testing.T) {
	t.Parallel()
	d, api := described(t), &provider.API{Repositories: []string{"octo-org/kettle"}}
	for objectType := range (github.GitHub{}).Lists(nil, api, "") {
		whole, body := d.asRead(t, objectType)
		for _, since := range []time.Time{{}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} {
			call := github.GitHub{}.ListObjects(nil, api, "", objectType, since, time.Time{}, "")
			op, template := d.knows(t, call)
			if op.answers() == nil {
				t.Errorf("GitHub describes no list of %s", objectType)
				continue
			}
			element := op.answers()
			answer := d.example(element, 0)
			if list, ok := answer.([]any); ok {
				element = d.flat(element).Items
				delete(list[0].(map[string]any), "pull_request") // else it is none of the issues
			}
			page, next, err := github.GitHub{}.ObjectPage(nil, api, "", objectType, "", http.Header{},
				must(json.Marshal(answer)))
			if err != nil || next != "" || len(page) != 1 || page[0].ObjectID != "7" || page[0].Body == nil &&
				!page[0].HasAt {
				t.Errorf("the description's example of %s is read as %+v, %q (%v)", template, page, next, err)
				continue
			}
			o, err := github.GitHub{}.Snapshot(&provider.Source{}, &provider.Snapshot{ObjectType: objectType,
				ObjectID: "7", Body: body})
			if err != nil {
				t.Fatal(err)
			}
			for name := range d.flat(whole).Properties {
				if page[0].Body != nil && d.at(element, name) == nil && !slices.Contains(o.IgnoredPaths, name) {
					t.Errorf("an element of %s has no %s, which a %s has that is read by itself", template, name,
						objectType)
				}
			}
		}
	}
}

// What a webhook was sent is listed, read and sent again as GitHub's description has it.
func TestGitHubOpenAPI_deliveries_areKnown(t *testing.T) {
	t.Parallel()
	d := described(t)
	for _, hook := range []string{"repos/octo-org/kettle/hooks/7", "orgs/octo-org/hooks/7"} {
		if err := (github.GitHub{}).CompleteAPI(&provider.API{Webhooks: []string{hook}}); err != nil {
			t.Fatal(err)
		}
		d.knows(t, github.GitHub{}.ListDeliveries(nil, hook, ""))
		list, _ := d.knows(t, github.GitHub{}.ListDeliveries(nil, hook, "v1_7"))
		one, _ := d.knows(t, github.GitHub{}.FetchDelivery(nil, hook, "7"))
		d.knows(t, github.GitHub{}.Redeliver(nil, hook, "7"))
		header := http.Header{"Link": {`<https://api.github.com/` + hook + `/deliveries?cursor=v1_8>; rel="next"`}}
		page, next, err := github.GitHub{}.DeliveryPage(header, must(json.Marshal(d.example(list.answers(), 0))))
		if err != nil || next != "v1_8" || len(page) != 1 || page[0].ID != "7" || page[0].Key != "seven" ||
			page[0].SentAt.Year() != 2026 || !page[0].Failed {
			t.Errorf("%s: the description's example of a page is read as %+v, %q (%v)", hook, page, next, err)
		}
		sent := d.example(one.answers(), 0).(map[string]any)
		if d.at(one.answers(), "request.payload") == nil || d.at(one.answers(), "request.headers") == nil {
			t.Errorf("%s: a delivery does not tell what was sent", hook)
		}
		request := sent["request"].(map[string]any)
		request["payload"], request["headers"] = map[string]any{"zen": "Keep it."},
			map[string]any{"X-GitHub-Hook-ID": "7"}
		delivery, err := github.GitHub{}.ReadDelivery(must(json.Marshal(sent)))
		if err != nil || string(delivery.Body) != `{"zen":"Keep it."}` ||
			delivery.Header.Get("X-GitHub-Event") != "seven" || delivery.Header.Get("X-GitHub-Hook-Id") != "7" {
			t.Errorf("%s: the description's example of a delivery is read as %+v (%v)", hook, delivery, err)
		}
	}
}
