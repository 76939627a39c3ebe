package github_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/versioning"
)

func diff(want, got any) string { return cmp.Diff(want, got) }

// varied is what the n-th event of a sample says.
func varied(t *testing.T, s provider.Sample, n int, at time.Time) versioning.Input {
	t.Helper()
	v, err := github.GitHub{}.Vary(s, n, at, false)
	if err != nil {
		t.Fatal(err)
	}
	o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.Stored{Type: s.Type, Body: v.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", s.Type, err)
	}
	in, err := versioning.FromObservation(o, at.Add(5*time.Second))
	if err != nil {
		t.Fatalf("version of %s: %v", s.Type, err)
	}
	return in
}

// Whoever sends a type again sees that something changed. A final delete stays what it is, and of a push the commit moves.
func TestEachVariedEventChangesSomething(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (github.GitHub{}).Samples() {
		if s.Type == "ping" {
			continue
		}
		one, two, later := varied(t, s, 1, at), varied(t, s, 2, at), varied(t, s, 1, at.Add(time.Second))
		if one.Partial != "" || one.Version.Final {
			continue
		}
		single := s.Type == "star.created" || s.Type == "installation.created" // nothing but their time may change
		if one.State.Hash == two.State.Hash && !single || one.State.Hash == later.State.Hash && s.Type != "push" {
			t.Errorf("%s says the same again", s.Type)
		}
		if one.Version.At/1e6 != at.Unix() || later.Version.Compare(one.Version) <= 0 {
			t.Errorf("%s: versions %s and %s", s.Type, one.Version, later.Version)
		}
	}
}

// Events of one second that name what they changed name the one before, so that their order can be told.
func TestVariedEventsFormAChain(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (github.GitHub{}).Samples() {
		if s.Type != "issues.edited" && s.Type != "push" {
			continue
		}
		row := versioning.NewRow()
		for _, n := range []int{3, 1, 4, 2} {
			versioning.Apply(&row, varied(t, s, n, at))
		}
		if want := varied(t, s, 4, at).State; row.Ambiguous || row.State.Hash != want.Hash {
			t.Errorf("%s ends as %s, ambiguous %v", s.Type, row.State.JSON, row.Ambiguous)
		}
	}
}

// A user's own body is varied like a sample: of a type that the table does not know, under its event's member.
func TestVaryAnyBody(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	tests := map[string]struct{ eventType, body, want string }{
		"unlisted":    {"gizmo.made", `{"action": "made", "gizmo": {"id": 9, "title": "x", "updated_at": "2020-01-01T00:00:00Z"}}`, `"id":9000003,"title":"event 3","updated_at":"2026-09-21T14:13:20Z"`},
		"no object":   {"issues.opened", `{"action": "opened"}`, `{"action":"opened"}`},
		"other kinds": {"issues.edited", `{"issue": {"id": "x", "title": 1, "updated_at": null}, "changes": {"title": 7}}`, `{"id":"x","title":"event 3","updated_at":null}`},
		"long id":     {"issues.opened", `{"issue": {"id": 12345678901234567}}`, `{"id":123456789000003}`},
		"new ref":     {"push", `{"ref": "refs/heads/x", "after": "` + none + `"}`, `"ref":"refs/heads/x-3"`},
		"numbers":     {"installation.created", `{"action": "created", "installation": {"updated_at": 5}}`, `{"updated_at":1790000000}`},
	}
	for name, test := range tests {
		v, err := github.GitHub{}.Vary(provider.Sample{Type: test.eventType, Body: []byte(test.body)}, 3, at, true)
		if err != nil || !strings.Contains(string(v.Body), test.want) {
			t.Errorf("%s: %s, %v", name, v.Body, err)
		}
	}
}
