package hmac_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/signature"
	"github.com/postern-gateway/postern/internal/testkit/golden"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:  hmac.New(),
		Source:    providertest.Source("hmac", "hmac_test_new", "hmac_test_old"),
		Signature: "X-Signature",
		NoKey:     providertest.SignAgain(hmac.New(), providertest.Without("id")),
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// The demo source's configuration matches the samples.
func TestNew_demoSource_equalsConfiguration(t *testing.T) {
	t.Parallel()
	demo := config.Config{Sources: map[string]*config.Source{"hmac": config.DemoSources()["hmac"]}}
	e := demo.Endpoints()[0]
	if err := e.Provider.Check(e.Source); err != nil {
		t.Fatal(err)
	}
	for _, sample := range hmac.New().Samples() {
		d, err := hmac.New().Sign(e.Source, sample, suiteTime)
		must(t, err)
		want, _ := hmac.New().Identify(e.Source, d)
		if _, err := e.Provider.Verify(e.Source, d); err != nil {
			t.Error(err)
		}
		got, err := e.Provider.Identify(e.Source, d)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", sample.Type, err, diff)
		}
		stored := &provider.StoredEvent{Key: got[0].Key, Type: got[0].Type, Body: d.Body}
		was, is := providertest.Summary(hmac.New().Observe(e.Source, stored)),
			providertest.Summary(e.Provider.Observe(e.Source, stored))
		if was != is {
			t.Errorf("%s: %s, want %s", sample.Type, is, was)
		}
	}
}

func TestChallenge_requests_areAnsweredOrRejected(t *testing.T) {
	t.Parallel()
	const text = "text/plain; charset=utf-8"
	forbidden := &provider.Reply{Status: http.StatusForbidden, ContentType: text,
		Body: []byte("the token does not match the configured one\n")}
	meta := setup(t, "meta", "secret of a test")
	dropbox := setup(t, "dropbox", "secret of a test")
	for name, tc := range map[string]struct {
		e     config.Endpoint
		query string
		want  *provider.Reply
	}{
		"right token": {meta, "hub.mode=subscribe&hub.verify_token=a+token+of+ours&hub.challenge=1158201444",
			&provider.Reply{ContentType: text, Body: []byte("1158201444")}},
		"wrong token": {meta, "hub.mode=subscribe&hub.verify_token=a+token+of+your&hub.challenge=1158201444",
			forbidden},
		"no token": {meta, "hub.challenge=1158201444", forbidden},
		"two tokens": {meta,
			"hub.challenge=1&hub.verify_token=a+token+of+ours&hub.verify_token=a+token+of+ours", forbidden},
		"no challenge": {meta, "hub.verify_token=a+token+of+ours", nil},
		"without a token": {dropbox, "challenge=%3Cscript%3E",
			&provider.Reply{ContentType: text, Body: []byte("<script>")}},
		"empty":               {dropbox, "challenge=", nil},
		"none":                {dropbox, "", nil},
		"too long":            {dropbox, "challenge=" + strings.Repeat("a", 4097), nil},
		"of another provider": {setup(t, "github", "secret of a test"), "challenge=1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tc.e.Provider.(provider.Challenger).Challenge(tc.e.Source, &provider.Delivery{Method: http.MethodGet,
				Query: tc.query, Header: http.Header{}})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHandshake_deliveries_getResponse(t *testing.T) {
	t.Parallel()
	slack, xero := setup(t, "slack", "secret of a test"), setup(t, "xero", "secret of a test")
	handshake := func(body string) *provider.Reply {
		return slack.Provider.(provider.Handshaker).Handshake(slack.Source, &provider.Delivery{Header: http.Header{},
			Body: []byte(body)})
	}
	want := &provider.Reply{ContentType: "text/plain; charset=utf-8",
		Body: []byte("3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P")}
	if diff := cmp.Diff(want, handshake(`{"type": "url_verification", `+
		`"challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}`)); diff != "" {
		t.Error(diff)
	}
	for _, body := range []string{`{"type": "event_callback", "challenge": "x"}`, `{"challenge": "x"}`, "",
		"type=url_verification"} {
		if got := handshake(body); got != nil {
			t.Errorf("%s has the handshake response %s", body, got.Body)
		}
	}
	d := &provider.Delivery{Header: http.Header{}, Body: []byte(`{"events": []}`)}
	if got := xero.Provider.(provider.Acknowledger).Acknowledge(xero.Source, d); got == nil || got.Status != 200 ||
		len(got.Body) != 0 {
		t.Errorf("receipt %+v", got)
	}
	if got := slack.Provider.(provider.Acknowledger).Acknowledge(slack.Source, d); got != nil {
		t.Errorf("receipt %+v, want the default", got)
	}
}

func TestEcho_json_isEscaped(t *testing.T) {
	t.Parallel()
	c := &declared.Challenge{Echo: signature.MustRef("header:X-Okta-Verification-Challenge"), Member: "verification"}
	p := hmac.Of(hmac.New().Schemes(), hmac.New().Spec().Events, nil, declared.Handshake{Challenge: c},
		declared.Reply{})
	got := p.Challenge(&provider.Source{},
		&provider.Delivery{Header: http.Header{"X-Okta-Verification-Challenge": {`a"b<c`}}})
	want := &provider.Reply{ContentType: "application/json", Body: []byte(`{"verification":"a\"b\u003cc"}`)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// If events look alike, each delivery is a new event, and the same delivery is the same event.
func TestIdentify_uniquePerDelivery_givesNewKeys(t *testing.T) {
	t.Parallel()
	v := vectors(t, "dropbox")[0]
	e := setup(t, "dropbox", v.Secret)
	key := func(d *provider.Delivery) string {
		events, err := e.Provider.Identify(e.Source, d)
		if err != nil || len(events) != 1 || !events[0].ContentKey {
			t.Fatalf("%+v, %v", events, err)
		}
		return events[0].Key
	}
	later := v.delivery()
	later.ReceivedAt = later.ReceivedAt.Add(1)
	first, again := key(v.delivery()), key(v.delivery())
	if first != again || first == key(later) {
		t.Error("two deliveries have the same key")
	}
}

const pageIntro = `<!-- Generated from internal/provider/hmac/testdata: ` +
	`go test ./internal/provider/hmac -update. Do not edit. -->

# Senders in YAML

This page is for operators who configure a source with ` + "`provider: hmac`" + `.

It has tested settings for %d senders; [configuration.md](configuration.md) explains them. The test
of each configuration uses a delivery whose signature another program made. You choose the names of
the source and of the environment variable with its secret.

Objects are mirrored only if the sender's events contain their whole state with a version or a time.
Otherwise an event makes a refetch of the object pending. Omit ` + "`objects`" + ` if you want neither.
` + "`may_not_advance: true`" + ` means that the version may stay the same after a change.

`

// page returns the text of docs/reference/senders.md.
func page(t *testing.T) string {
	t.Helper()
	all := names(t)
	var out strings.Builder
	var sections strings.Builder
	fmt.Fprintf(&out, pageIntro, len(all))
	for _, name := range all {
		text, err := os.ReadFile(filepath.Join("testdata", "senders", name+".yaml"))
		must(t, err)
		title, rest, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		fmt.Fprintf(&out, "- [%s](#%s)\n", title, anchor(title))
		fmt.Fprintf(&sections, "\n## %s\n\n", title)
		for strings.HasPrefix(rest, "# ") {
			var line string
			line, rest, _ = strings.Cut(rest[2:], "\n")
			fmt.Fprintf(&sections, "%s\n", line)
		}
		fmt.Fprintf(&sections, "\n```yaml\n%s```\n", rest)
	}
	return out.String() + sections.String()
}

// anchor returns the anchor that Markdown renderers give to a heading.
func anchor(title string) string {
	return regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(title), " ",
		"-"), "")
}

func TestSendersPage_file_isCurrent(t *testing.T) {
	t.Parallel()
	golden.Page(t, "../../../docs/reference/senders.md", page(t))
}

// Neither a print nor an encoding shows the loaded token of a challenge.
func TestChallengeToken_printed_isMasked(t *testing.T) {
	t.Parallel()
	const token = "a token"
	from := signature.MustRef("query:hub.verify_token")
	h := declared.Handshake{Challenge: &declared.Challenge{Token: &declared.ChallengeToken{From: from,
		Loaded: []byte(token)}}}
	encoded, err := json.Marshal(h)
	must(t, err)
	shown := string(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown += fmt.Sprintf("\n"+verb, h.Challenge.Token) + fmt.Sprintf("\n"+verb, *h.Challenge.Token)
	}
	for _, form := range []any{token, fmt.Sprintf("%x", token), fmt.Sprintf("%d", []byte(token)),
		base64.StdEncoding.EncodeToString([]byte(token)), fmt.Sprintf("%#v", []byte(token))} {
		if strings.Contains(shown, strings.Trim(fmt.Sprint(form), "[]")) {
			t.Errorf("%v is shown:\n%s", form, shown)
		}
	}
}
