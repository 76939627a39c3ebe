package github_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/testkit"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  github.GitHub{},
		Source:    providertest.Source("github", "a new secret of a test", "an old secret of a test"),
		Signature: "X-Hub-Signature-256",
		NoKey: func(_ *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Header.Del("X-GitHub-Delivery")
		},
		VariantsChange: true,
		UnchangedVariants: map[string]string{"star.created": "in one second", "installation.created": "in one second",
			"push": "a second later"},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// A captured delivery can be sent again under another event's name, because GitHub does not sign
// it. Each of these bodies is signed by GitHub, but is sent under a name that would change its
// meaning.
func TestObserve_bodyOfOtherEvent_isDead(t *testing.T) {
	t.Parallel()
	const dead, partial = "dead: ", "partial: "
	repo := `"repository": {"id": 5, "full_name": "o/r", "default_branch": "main", ` + updated + `}`
	tests := map[string]struct{ event, body, want string }{
		"a comment deleted, as its issue": {"issues", `{"action": "deleted", "comment": {"id": 9}, ` +
			issue + `}`, dead},
		"a comment edited, as its issue": {"issues", `{"action": "edited", "comment": {"id": 9}, ` +
			issue + `, "changes": {"body": {"from": "x"}}}`, dead},
		"a label deleted, as its repository": {"repository", `{"action": "deleted", "label": {"id": 9}, ` +
			repo + `}`, dead},
		"a label edited, as its repository": {"repository", `{"action": "edited", "label": {"id": 9}, ` +
			repo + `}`, dead},
		"a star, as its repository": {"repository",
			`{"action": "created", "starred_at": "2026-01-01T00:00:00Z", ` + repo + `}`, dead},
		"a repository, as a star": {"star", `{"action": "created", ` + repo +
			`, "sender": {"id": 6}}`, dead},
		"a new event, as its repository": {"repository", `{"action": "edited", "novelty": {"id": 9}, ` +
			repo + `}`, partial},
		"a new event's delete, as an issue's": {"issues", `{"action": "deleted", "novelty": {"id": 9}, ` +
			issue + `}`, partial},
		"a discussion deleted, as a label": {"label",
			`{"action": "deleted", "discussion": {"id": 9}, "label": {"id": 4}}`, dead},
		"a team's membership, as a member": {"member",
			`{"action": "removed", "member": {"id": 9}, "team": {"id": 4}, "scope": "team", ` + repo + `}`, dead},
		"an app's copy of its installation": {"installation",
			`{"action": "deleted", "installation": {"id": 9, "node_id": "x"}}`, partial},
		"an app's label deleted, as its installation": {"installation", `{"action": "deleted", "label": {"id": 4}, ` +
			repo + `, "installation": {"id": 9, "node_id": "x"}}`, dead},
		"a review edited, as its pull request": {"pull_request", `{"action": "edited", "review": {"id": 9}, ` +
			pull + `}`, dead},
		"a line's comment, as an issue's": {"issue_comment",
			`{"action": "deleted", "comment": {"id": 9}, ` + pull + `}`, dead},
		"a commit's comment, as an issue's": {"issue_comment",
			`{"action": "created", "comment": {"id": 9, ` + updated + `}, ` + repo + `}`, dead},
		"a discussion's comment, as an issue's": {"issue_comment",
			`{"action": "deleted", "comment": {"id": 9}, "discussion": {"id": 3}, ` + issue + `}`, dead},
		"a status, as its deployment": {"deployment",
			`{"action": "created", "deployment": {"id": 9, ` + updated + `}, "deployment_status": {"id": 10}}`,
			dead},
		"a run, as its workflow": {"workflow_job",
			`{"action": "completed", "workflow_run": {"id": 9}, "workflow": {"id": 4}}`, dead},
		"a tag made, as a push": {"push", `{"ref": "v1", "ref_type": "tag", ` + repo + `}`,
			dead},
		"a push, as a branch deleted": {"delete", pushed(first, then), dead},
		"an issue labeled, as a label": {"label", `{"action": "labeled", "label": {"id": 4}, ` + issue +
			`}`, dead},
		"an issue opened, under an action in the name": {"issues.deleted", `{"action": "opened", ` + issue + `}`,
			dead},
	}
	for name, test := range tests {
		e := identify(t, &provider.Source{}, newDelivery(test.body, "X-GitHub-Event", test.event))
		if got := summary(e.Type, test.body); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// No sample changes an object under another event's name.
func TestObserve_samplesUnderOtherEvents_changeNothing(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, eventType := range github.Types() {
		event, _, _ := strings.Cut(eventType, ".")
		names[event] = true
	}
	for _, s := range (github.GitHub{}).Samples() {
		own, _, _ := strings.Cut(s.Type, ".")
		for event := range names {
			e := identify(t, &provider.Source{}, newDelivery(string(s.Body), "X-GitHub-Event", event))
			o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: e.Type, Body: s.Body})
			if changes := err == nil && o.Ignored == "" && o.Partial == ""; changes && event != own {
				t.Errorf("%s as %s is accepted: %+v", s.Type, e.Type, o)
			}
		}
	}
}

// A text of a body that a reason quotes can be stored and displayed.
func TestObserve_reasons_haveNoControlCharacters(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`a\u0000b`, `\u001b[2J`, strings.Repeat("x", 10_000)} {
		got := summary("issues.deleted", `{"action": "deleted", "`+name+`": {"id": 9}, `+issue+`}`)
		if !strings.Contains(got, "another event's") || strings.ContainsFunc(got, unicode.IsControl) || len(got) > 300 {
			t.Errorf("%q", got)
		}
	}
}

// The number in a name decides which object it is, so it must be a positive integer.
func TestObserve_ids_mustBePositiveIntegers(t *testing.T) {
	t.Parallel()
	tests := map[string]string{"7": "7", "7e2": "700", "9007199254740993": "9007199254740993",
		"9223372036854775807": "9223372036854775807",
		"9223372036854775808": "", "0": "", "-7": "", "7.5": "", `"7"`: "", "null": "", "{}": "", "1e400000": ""}
	for id, want := range tests {
		body := `{"action": "deleted", "label": {"id": ` + id + `}}`
		o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: "label.deleted",
			Body: []byte(body)})
		if o.ObjectID != want || (err != nil) != (want == "") {
			t.Errorf("id %s: %q, %v", id, o.ObjectID, err)
		}
	}
}

// A push builds its own state, with the repository's number as it is written.
func TestObserve_builtStates_areRead(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ eventType, body, want string }{
		"push": {"push", pushed(first, then), `{"ref": "refs/heads/main", "repository_id": 5, "sha": "` + then + `"}`},
		"star": {"star.created",
			`{"action": "created", "starred_at": "2026-01-01T00:00:00Z", ` +
				`"repository": {"id": 5, "full_name": "o/r", "size": 1}, ` +
				`"sender": {"id": 6, "login": "mona", "type": "User"}}`,
			`{"starred_at": "2026-01-01T00:00:00Z", "repository": {"id": 5, "full_name": "o/r"}, ` +
				`"user": {"id": 6, "login": "mona"}}`},
	}
	for name, test := range tests {
		o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: test.eventType,
			Body: []byte(test.body)})
		testkit.Must(t, err)
		var got, want any
		if err := json.Unmarshal(o.State.Raw(), &got); err != nil {
			t.Fatalf("%s: %s: %v", name, o.State.Raw(), err)
		}
		testkit.Must(t, json.Unmarshal([]byte(test.want), &want))
		if diff := diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
