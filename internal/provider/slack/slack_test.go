package slack_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/slack"
)

const challenge = `{"token":"verification-token",` +
	`"challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}`

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:    slack.New(),
		Source:      providertest.Source("slack", "f00dc0ffee5ec7e7", "0ddba11c0ffee5ec"),
		Signature:   "X-Slack-Signature",
		SignsTime:   true,
		NoKey:       providertest.SignAgain(slack.New(), providertest.Without("event_id")),
		ContentKeys: []string{"/deploy", "block_actions"},
		Handshakes: []providertest.Handshake{{Name: "url_verification",
			Sample: provider.Sample{Type: "url_verification",
				Body: []byte(challenge)},
			Want: &provider.Reply{ContentType: "text/plain; charset=utf-8",
				Body: []byte("3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P")}}},
		Reply: &provider.Reply{},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// The example of https://docs.slack.dev/authentication/verifying-requests-from-slack: a slash
// command.
const vectorBody = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&" +
	"team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&" +
	"command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com" +
	"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&" +
	"trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"

func TestVerify_documentedExample_isAccepted(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector",
		Value: []byte("8f742231b10e8888abcd99yyyzzz85a5")}}}
	d := &provider.Delivery{Body: []byte(vectorBody), ReceivedAt: time.Unix(1531420618, 0),
		Header: http.Header{"X-Slack-Request-Timestamp": {"1531420618"},
			"X-Slack-Signature": {"v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}}}
	if v, err := slack.New().Verify(src, d); err != nil || v.Scheme != "slack-v0" {
		t.Errorf("verify: %+v, %v", v, err)
	}
	events, err := slack.New().Identify(src, d)
	if err != nil || len(events) != 1 || events[0].Type != "/webhook-collect" || events[0].Account != "T1DC2JH3J" {
		t.Errorf("identify: %+v, %v", events, err)
	}
	d.Header.Set("X-Slack-Signature", "v1"+d.Header.Get("X-Slack-Signature")[2:])
	suite().CheckRejected(t, src, d, provider.MissingSignature, provider.MalformedSignature)
}

// A retry of Slack has other headers and a new signature, and is the same event.
func TestIdentify_retry_isSameEvent(t *testing.T) {
	t.Parallel()
	s := suite()
	sample := s.Provider.Samples()[1]
	once, _, _ := s.Observed(t, s.Deliver(t, s.Source, sample))
	d := s.Deliver(t, s.Source, sample)
	d.Header.Set("X-Slack-Retry-Num", "1")
	d.Header.Set("X-Slack-Retry-Reason", "http_timeout")
	again, _, _ := s.Observed(t, d)
	if diff := cmp.Diff(once, again); diff != "" {
		t.Error(diff)
	}
}

func TestIdentify_workspaces_areAccounts(t *testing.T) {
	t.Parallel()
	s := suite()
	src := *s.Source
	src.Accounts = []string{"T061EG9R6"}
	for _, sample := range s.Provider.Samples() {
		d := s.Deliver(t, &src, sample)
		if events, err := s.Provider.Identify(&src, d); err != nil || events[0].Account != "T061EG9R6" {
			t.Errorf("%s: %+v, %v", sample.Type, events, err)
		}
		other := src
		other.Accounts = []string{"T1DC2JH3J"}
		if _, err := s.Provider.Identify(&other, d); err == nil ||
			!strings.Contains(err.Error(), string(provider.ForbiddenAccount)) {
			t.Errorf("%s of another workspace: %v", sample.Type, err)
		}
	}
}

// Only the verification of an address gets a response; a similar delivery is an event.
func TestHandshake_otherRequests_areStored(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"no challenge":  `{"type":"url_verification"}`,
		"a number":      `{"type":"url_verification","challenge":7}`,
		"another type":  `{"type":"event_callback","challenge":"abc"}`,
		"too long":      `{"type":"url_verification","challenge":"` + strings.Repeat("a", 2000) + `"}`,
		"inside a form": "payload=%7B%22type%22%3A%22url_verification%22%2C%22challenge%22%3A%22abc%22%7D",
		"no JSON":       `{"type":"url_verification","challenge":"abc"`,
	} {
		if got := slack.New().Handshake(suite().Source, &provider.Delivery{Body: []byte(body)}); got != nil {
			t.Errorf("%s is answered: %s", name, got.Body)
		}
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
