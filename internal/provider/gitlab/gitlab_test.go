package gitlab_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/gitlab"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	newToken = "whsec_bmV3LXNpZ25pbmctdG9rZW4tb2YtMzItYnl0ZXMuLi4="
	oldToken = "whsec_b2xkLXNpZ25pbmctdG9rZW4tb2YtMzItYnl0ZXMuLi4="
)

const without = ", without action oldrev merge_status detailed_merge_status head_pipeline_id source target"

// summaries are bodies with their expected summaries.
var summaries = map[string]string{
	`{"object_kind":"issue","project":{"id":1},"object_attributes":{"id":9,` +
		`"updated_at":"2013-12-03T17:15:43Z","action":"open"}}`: "1 issue 9, at 1386090943000000/1000000, rank 1, " +
		"own, may not advance" + without,
	`{"object_kind":"issue","project_id":1,"object_attributes":{"id":9,` +
		`"updated_at":"2013-12-03 17:15:43 UTC","action":"close"}}`: "1 issue 9, at 1386090943000000/1000000, " +
		"rank 1, own, may not advance" + without,
	`{"object_kind":"work_item","object_attributes":{"id":9,` +
		`"updated_at":"2013-12-03 17:15:43.250 UTC"}}`: "work_item 9, at 1386090943250000/1000, rank 1, own, " +
		"may not advance" + without,
	`{"object_kind":"note","object_attributes":{"id":7}}`: "note 7, partial: the event has no version and no time, " +
		"so its order is unknown",
	`{"object_kind":"deployment","deployment_id":15,"status_changed_at":"2021-04-28 21:50:00 +0200"}`: "deployment " +
		"15, at 1619639400000000/1000000, rank 1, own, may not advance, without project user",
	`{"object_kind":"release","action":"update","id":5}`: "release 5, partial: the event has no version and no time, " +
		"so its order is unknown",
	`{"object_kind":"release","action":"delete","id":5}`: "release 5, partial: the delete has no time, " +
		"and the same object can return",
	`{"object_kind":"build","build_id":1977,"build_status":"running"}`: "build 1977, partial: " +
		"the event has no time of the job's last change",
	`{"object_kind":"tag_push","project_id":1}`: "ignored: a push contains commits, not an object that is mirrored",
	`{"event_name":"user_add_to_group","group_id":3}`: "ignored: " +
		"events of this type are about no object that is mirrored",
	`{"object_kind":"wiki_page","object_attributes":{"title":"Home","action":"create"}}`: "ignored: " +
		"events of this type are about no object that is mirrored",
	`{"object_kind":"issue","object_attributes":{"updated_at":"2013-12-03 17:15:43 UTC",` +
		`"action":"open"}}`: "ignored: the event has no object type or id, although events of its type should",
}

// signingTokenSuite is the suite for a hook with a signing token.
func signingTokenSuite() providertest.Suite {
	return providertest.Suite{
		Provider:   gitlab.New(),
		Source:     providertest.Source("gitlab", newToken, oldToken),
		Signature:  "Webhook-Signature",
		SignsTime:  true,
		BadSecrets: []string{"whsec_", "whsec_not base64!"},
		Summaries:  summaries,
		// The id is signed, so it is always present. An invalid id gives a content key.
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			d.Header.Set("Webhook-Id", strings.Repeat("x", provider.MaxNameBytes+1))
			d.Header.Del("Idempotency-Key")
			if err := provider.SignDelivery(src, d, gitlab.New().Schemes()[0], d.ReceivedAt); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// secretTokenSuite is the suite for a hook with a secret token.
func secretTokenSuite() providertest.Suite {
	return providertest.Suite{
		Provider:       gitlab.New(),
		Source:         providertest.Source("gitlab", "a new secret token", "an old secret token"),
		Signature:      "X-Gitlab-Token",
		BodyNotCovered: "verifies the sender, but not the body",
		NoKey: func(_ *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Header.Del("Idempotency-Key")
		},
	}
}

func TestProvider_signingToken_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, signingTokenSuite())
}

func TestProvider_secretToken_conforms(t *testing.T) {
	t.Parallel()
	providertest.Run(t, secretTokenSuite())
}

// A secret of one kind is not accepted as the other kind.
func TestVerify_secretOfOtherKind_isRejected(t *testing.T) {
	t.Parallel()
	signingSuite, tokenSuite := signingTokenSuite(), secretTokenSuite()
	sample := signingSuite.Provider.Samples()[0]
	signingSource, tokenSource := signingSuite.Source, tokenSuite.Source

	// A signing token is never compared with a received token: GitLab does not send it, so a sender
	// that does is not GitLab.
	d := &provider.Delivery{Header: http.Header{"X-Gitlab-Token": {newToken}}, Body: sample.Body,
		ReceivedAt: time.Unix(1767258000, 0)}
	signingSuite.CheckRejected(t, signingSource, d, provider.WrongSignature)
	// A secret token signs nothing, because every proxy has seen it. "a new secret token"
	d = signingSuite.Deliver(t, &provider.Source{Secrets: []provider.Secret{{Name: "seen",
		Value: []byte("whsec_YSBuZXcgc2VjcmV0IHRva2Vu")}}}, sample)
	tokenSuite.CheckRejected(t, tokenSource, d, provider.WrongSignature)
	// A delivery for a source of the other kind is rejected.
	signingSuite.CheckRejected(t, signingSource, tokenSuite.Deliver(t, tokenSource, sample), provider.WrongSignature)
	tokenSuite.CheckRejected(t, tokenSource, signingSuite.Deliver(t, signingSource, sample), provider.WrongSignature)
	// A right token does not replace a missing signature if the source has no secret token.
	d = signingSuite.Deliver(t, signingSource, sample)
	d.Header.Set("X-Gitlab-Token", "a new secret token")
	d.Header.Del("Webhook-Signature")
	signingSuite.CheckRejected(t, signingSource, d, provider.WrongSignature)

	both := &provider.Source{Secrets: append(slices.Clone(signingSource.Secrets), tokenSource.Secrets...)}
	for scheme, d := range map[string]*provider.Delivery{"gitlab-signing-token": signingSuite.Deliver(t, signingSource,
		sample), "gitlab-token": tokenSuite.Deliver(t, tokenSource, sample)} {
		if v, err := gitlab.New().Verify(both, d); err != nil || v.Scheme != scheme {
			t.Errorf("a source with both: %+v, %v, want %s", v, err, scheme)
		}
	}
}

// The token is a credential, so it is in no stored header.
func TestHeaders_secretToken_isNotStored(t *testing.T) {
	t.Parallel()
	stored := gitlab.New().Headers()
	if slices.Contains(stored, "X-Gitlab-Token") {
		t.Errorf("stored: %q", stored)
	}
	for _, name := range []string{"Webhook-Id", "Webhook-Timestamp", "Webhook-Signature", "Idempotency-Key",
		"X-Gitlab-Event"} {
		if !slices.Contains(stored, name) {
			t.Errorf("%s is not stored: %q", name, stored)
		}
	}
}

// A hook that gets a signing token keeps the keys of its events. Of two ids the signed one is used.
func TestIdentify_keyHeaders_preferSignedID(t *testing.T) {
	t.Parallel()
	s := signingTokenSuite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	if id := d.Header.Get("Webhook-Id"); id == "" || id != d.Header.Get("Idempotency-Key") {
		t.Errorf("ids %q", d.Header)
	}
	e, _, _ := s.Observed(t, d)
	d.Header.Set("Idempotency-Key", "chosen by an attacker")
	if again, _, _ := s.Observed(t, d); again.Key != e.Key {
		t.Errorf("an unsigned header renames event %s to %s", e.Key, again.Key)
	}
}

func observed(t *testing.T, body string) provider.Observation {
	t.Helper()
	_, o, err := signingTokenSuite().Observed(t, &provider.Delivery{Header: http.Header{"Webhook-Id": {"e"}},
		Body:       []byte(body),
		ReceivedAt: time.Unix(1767312000, 0)})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return o
}

// Old values are used only in the format of the object: GitLab writes times differently in changes,
// and lists assignees that did not change.
func TestObserve_changes_giveStateBefore(t *testing.T) {
	t.Parallel()
	for changes, want := range map[string]string{
		`{"title":{"previous":"a","current":"b"},` +
			`"updated_at":{"previous":"2026-01-01 10:00:00 UTC",` +
			`"current":"2026-01-01 10:04:12 UTC"}}`: `{"title":"a","updated_at":"2026-01-01 10:00:00 UTC"}`,
		`{"closed_at":{"previous":"2026-01-01 10:00:00 UTC","current":null}}`: `{"closed_at":` +
			`"2026-01-01 10:00:00 UTC"}`,
		`{"title":{"previous":"a","current":"b"},` +
			`"updated_at":{"previous":"2026-01-01 10:00:00 UTC","current":"2026-01-01T10:04:12Z"}}`: "",
		`{"title":{"previous":"a","current":"c"}}`:                                            "",
		`{"title":{"previous":"a","current":"b"},"assignees":{"previous":[],"current":[{}]}}`: "",
		`{"title":{"current":"b"}}`:                                                           "",
		`{"title":"b"}`:                                                                       "",
		`{}`:                                                                                  "",
		`[]`:                                                                                  "",
		`null`:                                                                                "",
	} {
		o := observed(t, `{"object_kind":"issue","object_attributes":{"id":9,"title":"b",`+
			`"updated_at":"2026-01-01 10:04:12 UTC","action":"update"},`+`"changes":`+changes+`}`)
		if got := string(o.Before.Raw()); got != want || o.State == nil {
			t.Errorf("%s: before %s, want %s", changes, got, want)
		}
	}
}

// Two updates within one second are ordered by their old values. Without comparable old values they
// are ambiguous.
func TestObserve_updatesOfOneSecond_areOrderedByOldValues(t *testing.T) {
	t.Parallel()
	update := func(title, state, changes string) string {
		return fmt.Sprintf(`{"object_kind":"issue","object_attributes":{"id":9,"title":%q,`+
			`"state":%q,"updated_at":"2026-01-01 10:04:12 UTC","action":"update"},`+`"changes":%s}`, title, state,
			changes)
	}
	renamed := update("b", "opened", `{"title":{"previous":"a","current":"b"}}`)
	closed := update("b", "closed", `{"state":{"previous":"opened","current":"closed"}}`)
	unrelated := update("b", "closed",
		`{"state":{"previous":"opened","current":"closed"},"assignees":{"previous":[],"current":[{"id":51}]}}`)
	for second, ambiguous := range map[string]bool{closed: false, unrelated: true} {
		var inputs []versioning.Input
		for _, body := range []string{renamed, second} {
			in, err := versioning.InputFromObservation(observed(t, body), time.Unix(1767312000, 0))
			if err != nil {
				t.Fatal(err)
			}
			inputs = append(inputs, in)
		}
		providertest.CheckEnd(t, inputs, ambiguous)
	}
}

func FuzzIdentify(f *testing.F) {
	providertest.Fuzz(f, signingTokenSuite(), "Idempotency-Key", "X-Gitlab-Event")
}
