package github_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/testkit"
)

// newDelivery returns a delivery with the given headers, in pairs.
func newDelivery(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{}, Body: []byte(body)}
	for pair := range slices.Chunk(headers, 2) {
		d.Header.Set(pair[0], pair[1])
	}
	return d
}

func identify(t *testing.T, src *provider.Source, d *provider.Delivery) provider.Event {
	t.Helper()
	events, err := github.GitHub{}.Identify(src, d)
	if err != nil || len(events) != 1 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events[0]
}

// The example of GitHub's documentation about validating deliveries.
func TestVerify_publishedExample_isAccepted(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "doc", Value: []byte("It's a Secret to Everybody")}}}
	const right = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	v, err := github.GitHub{}.Verify(src, newDelivery("Hello, World!", "X-Hub-Signature-256", right))
	if err != nil || v.Scheme != "github-sha256" || v.Secret != "doc" {
		t.Errorf("verify: %+v, %v", v, err)
	}
	for _, wrong := range []string{strings.TrimPrefix(right, "sha256="), "sha1=" + right[7:], "sha256=" + right[9:],
		right + "00", "sha256="} {
		if _, err := (github.GitHub{}).Verify(src, newDelivery("Hello, World!", "X-Hub-Signature-256",
			wrong)); err == nil {
			t.Errorf("signature %s is accepted", wrong)
		}
	}
}

// A right SHA-1 signature is not accepted, alone or with a wrong SHA-256 signature. The rejection
// says what is missing.
func TestVerify_sha1Signature_isRejected(t *testing.T) {
	t.Parallel()
	src := suite().Source
	mac := hmac.New(sha1.New, src.Secrets[0].Value)
	mac.Write([]byte("{}"))
	old := "sha1=" + hex.EncodeToString(mac.Sum(nil))
	tests := map[string]struct {
		headers []string
		reason  provider.Reason
		detail  string
	}{
		"none":         {nil, provider.MissingSignature, "has a secret"},
		"SHA-1":        {[]string{"X-Hub-Signature", old}, provider.MissingSignature, "SHA-1"},
		"SHA-1 as 256": {[]string{"X-Hub-Signature-256", old}, provider.MalformedSignature, ""},
		"with a wrong SHA-256": {[]string{"X-Hub-Signature", old, "X-Hub-Signature-256", "sha256=" +
			strings.Repeat("00", 32)},
			provider.WrongSignature, ""},
	}
	for name, test := range tests {
		_, err := github.GitHub{}.Verify(src, newDelivery("{}", test.headers...))
		var r *provider.Rejection
		if !errors.As(err, &r) || r.Reason != test.reason || !strings.Contains(r.Detail, test.detail) {
			t.Errorf("%s: %v, want %s with %q", name, err, test.reason, test.detail)
		}
	}
}

func TestIdentify_event_isNamed(t *testing.T) {
	t.Parallel()
	body := `{"action": "deleted", "label": {"id": 7}, "repository": {"id": 5, "owner": {"login": "octo-org"}}}`
	e := identify(t, &provider.Source{}, newDelivery(body, "X-GitHub-Event", "label", "X-GitHub-Delivery", "d-1"))
	want := provider.Event{Key: "d-1", Type: "label.deleted", ObjectType: "label", ObjectID: "7",
		Fingerprint: provider.BodyFingerprint(
			[]byte(`{"action":"deleted","label":{"id":7},"repository":{"id":5,"owner":{"login":"octo-org"}}}`))}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	if e := identify(t, &provider.Source{}, newDelivery(pushed(first, then), "X-GitHub-Event", "push",
		"X-GitHub-Delivery",
		"d-2")); e.Type != "push" ||
		e.ObjectID != "5:refs/heads/main" || !e.OccurredAt.Equal(time.Unix(1767225600, 0)) {
		t.Errorf("push: %+v", e)
	}
}

func TestIdentify_eventType_includesAction(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ event, body, want string }{
		"with action": {"issues", `{"action": "opened"}`, "issues.opened"},
		"without":     {"push", `{}`, "push"},
		"chosen by a user": {"repository_dispatch", `{"action": "Deploy it now.please"}`,
			"repository_dispatch.Deploy it now.please"},
		"invalid action": {"repository_dispatch", `{"action": "a\u0000b"}`, "repository_dispatch"},
		"long action": {"repository_dispatch", `{"action": "` + strings.Repeat("x", 250) + `"}`,
			"repository_dispatch"},
		"number as action": {"issues", `{"action": 1}`, "issues"},
		"unreadable":       {"issues", `{"action": "opened"`, "issues"},
		"no header":        {"", `{"action": "opened"}`, "unknown"},
		"action in header": {"issues.deleted", `{"action": "opened"}`, "unknown"},
		"no name":          {"Issues", `{"action": "opened"}`, "unknown"},
		"long header":      {strings.Repeat("a", 101), `{"action": "opened"}`, "unknown"},
	}
	for name, test := range tests {
		if e := identify(t, &provider.Source{}, newDelivery(test.body, "X-GitHub-Event",
			test.event)); e.Type != test.want ||
			!e.ContentKey {
			t.Errorf("%s: %+v, want %s under a content key", name, e, test.want)
		}
	}
}

// A form webhook is the same event as a JSON webhook, whatever its Content-Type header says. GitHub
// signs the form.
func TestIdentify_forms_equalJSON(t *testing.T) {
	t.Parallel()
	src := suite().Source
	for _, sample := range (github.GitHub{}).Samples() {
		plain, err := github.GitHub{}.Sign(src, sample, time.Unix(1_700_000_000, 0))
		testkit.Must(t, err)
		body := "payload=" + url.QueryEscape(string(sample.Body))
		mac := hmac.New(sha256.New, src.Secrets[0].Value)
		mac.Write([]byte(body))
		form := newDelivery(body, "X-GitHub-Event", plain.Header.Get("X-GitHub-Event"), "X-GitHub-Delivery",
			plain.Header.Get("X-GitHub-Delivery"),
			"X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		if _, err := (github.GitHub{}).Verify(src, form); err != nil {
			t.Errorf("%s: %v", sample.Type, err)
		}
		a, b := identify(t, src, plain), identify(t, src, form)
		b.Fingerprint = a.Fingerprint
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s as a form is another event:\n%s", sample.Type, diff)
		}
		if x, y := summary(a.Type, string(sample.Body)), summary(a.Type, body); x != y {
			t.Errorf("%s as JSON: %s\nas a form: %s", sample.Type, x, y)
		}
	}
}

func TestObserve_malformedForms_areDead(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"payload=%7B%7": `dead: the body begins like a form but is not one: invalid URL escape "%7"; ` +
			`its signature is right, so the sender sent it like this`,
		"payload={}&payload={}": "dead: the body is a form with 2 fields named payload instead of one",
		"payload=": "dead: the body is not JSON: the text ends too early at byte 0; its signature is right, so the " +
			"sender sent it like this",
		"payload=%5B%5D": "dead: the body is a JSON array, not an object; the provider sends objects only",
		"payload={};x": "dead: the body begins like a form but is not one: invalid semicolon separator in " +
			"query; its signature is right, so the sender sent it like this",
		"x=1&payload=%7B%7D": `dead: the body is not JSON: expected a value at byte 0; ` +
			`its signature is right, so the sender sent it like this`,
		"payload=payload%3D%257B%7D": `dead: the body is not JSON: expected a value at byte 0; ` +
			`its signature is right, so the sender sent it like this`,
	}
	for body, want := range tests {
		if got := summary("issues.opened", body); got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
		if e := identify(t, &provider.Source{Accounts: []string{"octo-org"}},
			newDelivery(body, "X-GitHub-Event", "issues")); e.Type != "issues" || !e.ContentKey {
			t.Errorf("%s: %+v", body, e)
		}
	}
}

func TestIdentify_owners_areAllowedOrRejected(t *testing.T) {
	t.Parallel()
	repo := `{"repository": {"owner": {"login": "octo-org"}}}`
	tests := map[string]struct {
		accounts string
		body     string
		rejected bool
	}{
		"any":                  {"", repo, false},
		"star":                 {"*", repo, false},
		"the allowed owner":    {"octo-org", repo, false},
		"in another case":      {"Octo-Org", repo, false},
		"another":              {"mona", repo, true},
		"listed":               {"mona octo-org", repo, false},
		"not listed":           {"mona ed", repo, true},
		"as organization":      {"octo-org", `{"organization": {"login": "octo-org"}}`, false},
		"another organization": {"octo-org", `{"organization": {"login": "mona"}}`, true},
		"as installation": {"octo-org",
			`{"installation": {"account": {"login": "octo-org"}}}`, false},
		"another installation": {"octo-org",
			`{"installation": {"account": {"login": "mona"}}}`, true},
		"transferred to another owner": {"octo-org",
			`{"repository": {"owner": {"login": "mona"}}, "organization": {"login": "octo-org"}}`, false},
		"no owner": {"octo-org", `{"sender": {"login": "mona"}}`, false},
		"unreadable": {"octo-org",
			`{"repository": {"owner": {"login": "mona"}}`, false},
		"in a form":              {"octo-org", "payload=" + url.QueryEscape(repo), false},
		"another in a form":      {"mona", "payload=" + url.QueryEscape(repo), true},
		"owner only in a header": {"mona", repo, true},
		"owner only as sender": {"mona",
			`{"repository": {"owner": {"login": "octo-org"}}, "sender": {"login": "mona"}}`, true},
	}
	for name, test := range tests {
		d := newDelivery(test.body, "X-GitHub-Event", "push", "X-GitHub-Hook-Installation-Target-Id", "mona")
		events, err := github.GitHub{}.Identify(&provider.Source{Accounts: strings.Fields(test.accounts)}, d)
		var r *provider.Rejection
		if errors.As(err, &r) != test.rejected || test.rejected && r.Reason != provider.ForbiddenAccount {
			t.Errorf("%s: %v", name, err)
		}
		if !test.rejected && events[0].Account != "" {
			t.Errorf("%s: account %s, want none", name, events[0].Account)
		}
	}
}

func TestCheck_sources_areAcceptedOrRejected(t *testing.T) {
	t.Parallel()
	secrets := []provider.Secret{{Name: "s", Value: []byte("x")}}
	tests := map[string]struct {
		src  provider.Source
		want string
	}{
		"none":             {provider.Source{}, ""},
		"organization":     {provider.Source{Accounts: []string{"octo-org"}}, ""},
		"managed user":     {provider.Source{Accounts: []string{"mona_octo", "*"}}, ""},
		"a repository":     {provider.Source{Accounts: []string{"octo-org/kettle"}}, "without a repository"},
		"a URL":            {provider.Source{Accounts: []string{"https://github.com/octo-org"}}, "is not a login"},
		"empty in a list":  {provider.Source{Accounts: []string{""}}, "is not a login"},
		"an own account":   {provider.Source{Account: "octo-org"}, "write accounts: [octo-org]"},
		"a choice of keys": {provider.Source{Key: "hook-id"}, "is always its delivery's id"},
	}
	for name, test := range tests {
		test.src.Secrets = secrets
		err := github.GitHub{}.Check(&test.src)
		if test.want == "" && err != nil || test.want != "" &&
			(err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// No body or header causes a panic, an event without key or type, or an observation without one of
// the three shapes.
func FuzzIdentify(f *testing.F) {
	for _, s := range (github.GitHub{}).Samples() {
		event, _, _ := strings.Cut(s.Type, ".")
		f.Add(event, "d-1", s.Body)
		f.Add(event, "", []byte("payload="+url.QueryEscape(string(s.Body))))
	}
	f.Fuzz(func(t *testing.T, event, id string, body []byte) {
		d := newDelivery(string(body), "X-GitHub-Event", event, "X-GitHub-Delivery", id)
		providertest.CheckSound(t, github.GitHub{}, &provider.Source{}, d)
		providertest.CheckSound(t, github.GitHub{}, &provider.Source{Accounts: []string{"octo-demo", "mona"}},
			d)
	})
}
