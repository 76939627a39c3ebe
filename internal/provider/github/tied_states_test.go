package github_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// input returns the input of a body under an event type.
func input(t *testing.T, eventType, body string) versioning.Input {
	t.Helper()
	if _, action, ok := strings.Cut(eventType, "."); ok {
		body = `{"action": "` + action + `", ` + strings.TrimPrefix(body, "{")
	}
	o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: eventType, Body: []byte(body)})
	if err != nil {
		t.Fatalf("observe %s: %v", eventType, err)
	}
	in, err := versioning.InputFromObservation(o, time.Unix(1767225605, 0))
	if err != nil || in.Partial != "" {
		t.Fatalf("version of %s: %v, %s", eventType, err, in.Partial)
	}
	return in
}

// tiedEvent is an event of one second: its type, its object or body, and its old values.
type tiedEvent struct{ event, body string }

// The events of an object within one second end in the state of the last event in any order, or are
// ambiguous.
func TestObserve_eventsOfOneSecond_endAsExpected(t *testing.T) {
	t.Parallel()
	const third = "3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f"
	titled := func(title, changes string) string {
		return fmt.Sprintf(`{"issue": {"id": 7, "state": "open", "body": "b", "title": %q, %s}, "changes": %s}`, title,
			updated, changes)
	}
	run := func(attempt int, status string) string {
		return fmt.Sprintf(`{"workflow": {}, "workflow_run": {"id": 9, "run_attempt": %d, "status": %q, %s}}`, attempt,
			status, updated)
	}
	merging := func(mergeable string) string {
		return `{"pull_request": {"id": 8, "merged": false, "mergeable": ` + mergeable +
			`, "base": {"sha": "a", "repo": {"size": ` + mergeable + `}}, ` + updated + `}}`
	}
	based := func(branch, changes string) string {
		return fmt.Sprintf(`{"pull_request": {"id": 8, "merged": false, "title": "t", `+
			`"base": {"ref": %q}, %s}, "changes": %s}`, branch, updated, changes)
	}
	tests := map[string]struct {
		events    []tiedEvent
		ambiguous bool
	}{
		"pushed twice":         {events: []tiedEvent{{"push", pushed(first, then)}, {"push", pushed(then, third)}}},
		"pushed, then deleted": {events: []tiedEvent{{"push", pushed(first, then)}, {"push", pushed(then, none)}}},
		"pushed and pushed back": {ambiguous: true, events: []tiedEvent{{"push", pushed(first, then)},
			{"push", pushed(then, first)}}},
		"created, then pushed": {ambiguous: true, events: []tiedEvent{{"push", pushed(none, first)},
			{"push", pushed(first, then)}}},
		"created, deleted and created again": {ambiguous: true, events: []tiedEvent{{"push", pushed(none, first)},
			{"push", pushed(first, none)},
			{"push", pushed(none, first)}}},
		"one of three pushes lost": {ambiguous: true, events: []tiedEvent{{"push", pushed(first, then)},
			{"push", pushed(third, none)}}},
		"titles": {events: []tiedEvent{{"issues.edited", titled("b", `{"title": {"from": "a"}}`)},
			{"issues.edited", titled("c", `{"title": {"from": "b"}}`)}}},
		"body, then title": {events: []tiedEvent{{"issues.edited", titled("a", `{"body": {"from": null}}`)},
			{"issues.edited", titled("b", `{"title": {"from": "a"}}`)}}},
		"edited without changes": {ambiguous: true, events: []tiedEvent{{"issues.edited", titled("a", `{}`)},
			{"issues.edited", titled("b", `{}`)}}},
		"edited with incomplete changes": {ambiguous: true,
			events: []tiedEvent{{"issues.edited", titled("a", `{"body": {"from": null}}`)},
				{"issues.edited", titled("b", `{"title": {"from": "a"}, "made_public": {"from": false}}`)}}},
		"opened, then edited": {ambiguous: true, events: []tiedEvent{{"issues.opened", titled("a", `null`)},
			{"issues.edited", titled("b", `{"title": {"from": "a"}}`)}}},
		"changed base": {events: []tiedEvent{{"pull_request.edited", based("main", `{"title": {"from": "s"}}`)},
			{"pull_request.edited", based("next", `{"base": {"ref": {"from": "main"}}}`)}}},
		"run again at once": {events: []tiedEvent{{"workflow_run.completed", run(1, "completed")},
			{"workflow_run.requested", run(2, "queued")}}},
		"started and completed in one second": {ambiguous: true,
			events: []tiedEvent{{"workflow_run.in_progress", run(1, "in_progress")},
				{"workflow_run.completed", run(1, "completed")}}},
		"mergeable computed": {events: []tiedEvent{{"pull_request.opened", merging("1")},
			{"pull_request.labeled", merging("1")}}},
		"deleted whatever the time": {events: []tiedEvent{{"issues.edited", titled("b", `null`)},
			{"issues.deleted", titled("a", `null`)}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inputs := make([]versioning.Input, len(test.events))
			for i, e := range test.events {
				inputs[i] = input(t, e.event, e.body)
			}
			providertest.CheckEnd(t, inputs, test.ambiguous)
		})
	}
	// Values that GitHub computes later do not change the state.
	if a, b := input(t, "pull_request.opened", merging("1")),
		input(t, "pull_request.opened", merging("2")); a.State.Hash != b.State.Hash {
		t.Error("two states that differ only in ignored paths are different")
	}
}

// The same time of an installation in GitHub's three formats is one version.
func TestReadTime_spellings_agree(t *testing.T) {
	t.Parallel()
	for _, spelling := range []string{"1767225600", `"2026-01-01T00:00:00Z"`, `"2026-01-01T00:00:00.123+00:00"`,
		`"2025-12-31T16:00:00.999-08:00"`} {
		in := input(t, "installation.created", `{"installation": {"id": 9, "account": {}, "app_id": 1, "updated_at": `+
			spelling+`}}`)
		if in.Version.At != 1767225600e6 {
			t.Errorf("%s is version %d", spelling, in.Version.At)
		}
	}
	for _, none := range []string{"null", "0", "-5", "1e30", "1767225600.5", `"yesterday"`, `"0001-01-01T00:00:00Z"`,
		`"12026-01-01T00:00:00Z"`, "253402300800", "true", "{}"} {
		body := `{"installation": {"id": 9, "account": {}, "app_id": 1, "updated_at": ` + none + `}}`
		if got := observed("installation.created", body); got != "installation 9, partial: the body's "+
			"installation.updated_at is not a time, so the order of the state is unknown" {
			t.Errorf("%s: %s", none, got)
		}
	}
}

func diff(want, got any) string { return cmp.Diff(want, got) }

// makeVariant returns the input of the n-th variant of a sample.
func makeVariant(t *testing.T, s provider.Sample, n int, at time.Time) versioning.Input {
	t.Helper()
	v, err := github.GitHub{}.MakeVariant(s, n, at, false)
	testkit.Must(t, err)
	o, err := github.GitHub{}.Observe(&provider.Source{}, &provider.StoredEvent{Type: s.Type, Body: v.Body})
	if err != nil {
		t.Fatalf("observe %s: %v", s.Type, err)
	}
	in, err := versioning.InputFromObservation(o, at.Add(5*time.Second))
	if err != nil {
		t.Fatalf("version of %s: %v", s.Type, err)
	}
	return in
}

// Events of one second contain the old values of the event before, so that their order is known.
func TestMakeVariant_events_formAChain(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (github.GitHub{}).Samples() {
		if s.Type != "issues.edited" && s.Type != "push" {
			continue
		}
		var chain []versioning.Input
		for n := range 4 {
			chain = append(chain, makeVariant(t, s, n+1, at))
		}
		providertest.CheckEnd(t, chain, false)
	}
}

// MakeVariant accepts a user's own body. For a type that is not in the table it uses the event's
// member.
func TestMakeVariant_anyBody_keepsValidJSON(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	tests := map[string]struct{ eventType, body, want string }{
		"unknown event": {"gizmo.made",
			`{"action": "made", "gizmo": {"id": 9, "title": "x", "updated_at": "2020-01-01T00:00:00Z"}}`,
			`"id":9000003,"title":"event 3","updated_at":"2026-09-21T14:13:20Z"`},
		"no object": {"issues.opened", `{"action": "opened"}`, `{"action":"opened"}`},
		"other kinds": {"issues.edited",
			`{"issue": {"id": "x", "title": 1, "updated_at": null}, "changes": {"title": 7}}`,
			`{"id":"x","title":"event 3","updated_at":null}`},
		"long id": {"issues.opened", `{"issue": {"id": 12345678901234567}}`, `{"id":123456789000003}`},
		"new ref": {"push", `{"ref": "refs/heads/x", "after": "` + none + `"}`, `"ref":"refs/heads/x-3"`},
		"numbers": {"installation.created", `{"action": "created", "installation": {"updated_at": 5}}`,
			`{"updated_at":1790000000}`},
	}
	for name, test := range tests {
		v, err := github.GitHub{}.MakeVariant(provider.Sample{Type: test.eventType, Body: []byte(test.body)}, 3, at,
			true)
		if err != nil || !strings.Contains(string(v.Body), test.want) {
			t.Errorf("%s: %s, %v", name, v.Body, err)
		}
	}
}
