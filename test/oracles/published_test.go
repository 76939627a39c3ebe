package oracles_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	stripe "github.com/stripe/stripe-go/v84/webhook"

	"github.com/postern-gateway/postern/internal/provider"
)

// published is a signature that a sender shows in its documents or in the tests of its programs.
type published struct {
	from     string
	provider string
	secret   string
	url      string
	query    string
	header   map[string]string
	body     string
	at       int64
	// sdk is whom to ask besides; empty where it would judge the time.
	sdk string
}

const (
	slackBody = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow" +
		"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner" +
		"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands" +
		"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN" +
		"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
	stripeBody = `{
  "id": "evt_123",
  "object": "event",
  "account": "acct_123",
  "api_version": "2017-05-25",
  "created": 1533204620,
  "data": {
    "object": {
      "id": "cus_123",
      "object": "customer",
      "created": 123456789,
      "email": "test@stripe.com",
      "livemode": false,
      "metadata": {}
    }
  },
  "livemode": false,
  "pending_webhooks": 1,
  "request": {
    "id": "req_123",
    "idempotency_key": "idempotency-key-123"
  },
  "type": "customer.created"
}
`
	standardBody   = `{"test": 2432232314}`
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	twilioForm     = "To=%2B18005551212&From=%2B14158675309&Digits=1234&Caller=%2B14158675309&CallSid=CA1234567890ABCDE"
	twilioJSON     = `{"property": "value", "boolean": true}`
	twilioDigest   = "foo=1&bar=2&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
)

func vectors() []published {
	twilio := func(value string) map[string]string { return map[string]string{"X-Twilio-Signature": value} }
	const twilioURL = "https://mycompany.com/myapp.php"
	return []published{
		{"https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries", "github",
			"It's a Secret to Everybody", "", "",
			map[string]string{"X-Hub-Signature-256": "sha256=" +
				"757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
			"Hello, World!", 0, "@octokit/webhooks-methods"},
		{"the tests of stripe-dotnet", "stripe", "webhook_secret", "", "",
			map[string]string{"Stripe-Signature": "t=1533204620," +
				"v1=2220f87ef101a04665f11cdf770523143f875572008577fa0f20882ddb9cc3c7," +
				"v0=63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef"}, stripeBody, 1533204620, ""},
		{"https://docs.slack.dev/authentication/verifying-requests-from-slack", "slack",
			"8f742231b10e8888abcd99yyyzzz85a5", "", "",
			map[string]string{"X-Slack-Request-Timestamp": "1531420618",
				"X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}, slackBody,
			1531420618, ""},
		{"the tests of github.com/standard-webhooks/standard-webhooks/libraries/go", "standardwebhooks", standardSecret,
			"", "",
			map[string]string{"Webhook-Id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "Webhook-Timestamp": "1614265330",
				"Webhook-Signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
			standardBody, 1614265330, ""},
		{"the tests of twilio-node and twilio-go", "twilio", "12345", twilioURL, "foo=1&bar=2",
			twilio("RSOYDt4T1cUTdK1PDd93/VVr8B8="), twilioForm, 0, "twilio, forms"},
		{"the tests of twilio-node and twilio-go", "twilio", "12345", twilioURL, "foo=1&bar=2",
			twilio("RSOYDt4T1cUTdK1PDd93/VVr8B8="), twilioForm, 0, "twilio-go, forms"},
		{"the tests of twilio-node and twilio-go", "twilio", "12345", twilioURL, twilioDigest,
			twilio("a9nBmqA0ju/hNViExpshrM61xv4="), twilioJSON, 0, "twilio, JSON"},
		{"the tests of twilio-node and twilio-go", "twilio", "12345", twilioURL, twilioDigest,
			twilio("a9nBmqA0ju/hNViExpshrM61xv4="), twilioJSON, 0, "twilio-go, JSON"},
	}
}

// What senders publish is accepted, by their SDKs too; with another body neither accepts it.
func TestPublishedVectors_verify(t *testing.T) {
	t.Parallel()
	sdks := slices.Concat(goSDKs(), nodeSDKs())
	child(t)
	for _, v := range vectors() {
		t.Run(v.provider+", "+v.sdk, func(t *testing.T) {
			t.Parallel()
			for body, want := range map[string]bool{v.body: true, v.body + "&a=b": false} {
				d := &provider.Delivery{Header: http.Header{}, Query: v.query, Body: []byte(body),
					ReceivedAt: time.Unix(v.at, 0)}
				for name, value := range v.header {
					d.Header.Set(name, value)
				}
				s := preset(v.provider)(t, standardSecret)
				// published ones look unlike those that users get
				s.src.Secrets[0].Value, s.src.URL = []byte(v.secret), v.url
				if _, err := s.Verify(s.src, d); (err == nil) != want {
					t.Errorf("%q from %s: %v, want accepted %t", body, v.from, err, want)
				}
				i := slices.IndexFunc(sdks, func(o *oracle) bool { return o.sdk == v.sdk })
				if i >= 0 && sdks[i].verify(v.secret, withQuery(v.url, v.query), d) != want {
					t.Errorf("%q from %s: the SDK does not say %t", body, v.from, want)
				}
			}
		})
	}
}

// SDKs that can be told not to judge the time accept what was published long ago, too.
func TestPublishedVectors_old_verify(t *testing.T) {
	t.Parallel()
	for _, v := range vectors() {
		header := http.Header{}
		for name, value := range v.header {
			header.Set(name, value)
		}
		for body, want := range map[string]bool{v.body: true, v.body + "&": false} {
			var err error
			switch v.provider {
			case "stripe":
				err = stripe.ValidatePayloadIgnoringTolerance([]byte(body), header.Get("Stripe-Signature"), v.secret)
			case "standardwebhooks":
				w, bad := standardwebhooks.NewWebhook(v.secret)
				if bad != nil {
					t.Fatal(bad)
				}
				err = w.VerifyIgnoringTimestamp([]byte(body), header)
			default:
				continue
			}
			if (err == nil) != want {
				t.Errorf("%q from %s: %v, want accepted %t", body, v.from, err, want)
			}
		}
	}
}
