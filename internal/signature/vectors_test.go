package signature_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// Vectors that senders publish, each with the page or program it is from.
func TestPublishedVectors(t *testing.T) {
	t.Parallel()
	rows := catalogue()
	twilioURL := func(host, query string) string { return host + "/myapp.php?foo=1&bar=2" + query }
	const (
		twilioBody = "To=%2B18005551212&From=%2B14158675309&Digits=1234&Caller=%2B14158675309&CallSid=CA1234567890ABCDE"
		digest     = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
		twilioJSON = `{"property": "value", "boolean": true}`
		hubspotKey = "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy"
		slackBody  = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar" +
			"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands" +
			"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
		standardBody = `{"test": 2432232314}`
		standardID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	)
	circle := func(value string) map[string]string {
		return map[string]string{"Circleci-Signature": "v1=" + value + ",v2=00"}
	}
	twilio := func(value string) map[string]string { return map[string]string{"X-Twilio-Signature": value} }
	standard := func(value string) map[string]string {
		return map[string]string{"Webhook-Id": standardID, "Webhook-Timestamp": "1614265330", "Webhook-Signature": value}
	}
	tests := map[string]struct {
		scheme signature.Scheme
		secret string
		header map[string]string
		method string
		url    string
		body   string
		at     int64
	}{
		// https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
		"GitHub": {rows["GitHub"].Scheme, "It's a Secret to Everybody",
			map[string]string{"X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}, "", "", "Hello, World!", 0},
		// https://circleci.com/docs/guides/integration/outbound-webhooks/
		"CircleCI 1": {rows["CircleCI"].Scheme, "secret", circle("734cc62f32841568f45715aeb9f4d7891324e6d948e4c6c60c0621cdac48623a"), "", "", "hello world", 0},
		"CircleCI 2": {rows["CircleCI"].Scheme, "another-secret", circle("daa220016c8f29a8b214fbfc3671aeec2145cfb1e6790184ffb38b6d0425fa00"), "", "", "lalala", 0},
		"CircleCI 3": {rows["CircleCI"].Scheme, "hunter123", circle("9be2242094a9a8c00c64306f382a7f9d691de910b4a266f67bd314ef18ac49fa"), "", "", "an-important-request-payload", 0},
		// https://docs.slack.dev/authentication/verifying-requests-from-slack
		"Slack": {rows["Slack"].Scheme, "8f742231b10e8888abcd99yyyzzz85a5", map[string]string{"X-Slack-Request-Timestamp": "1531420618",
			"X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}, "", "", slackBody, 1531420618},
		// https://github.com/standard-webhooks/standard-webhooks/tree/main/libraries/go (its tests)
		"Standard Webhooks": {rows["Standard Webhooks"].Scheme, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			standard("v1a,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), "", "", standardBody, 1614265330},
		"Standard Webhooks without a prefix": {rows["Standard Webhooks"].Scheme, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			standard("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), "", "", standardBody, 1614265330},
		"Standard Webhooks v1a": {rows["Standard Webhooks v1a"].Scheme, "whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=",
			standard("v1,AAAA v1a,tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="), "", "", standardBody, 1614265330},
		// https://github.com/twilio/twilio-go/blob/main/client/request_validator_test.go
		"Twilio":                          {twilioForm, "12345", twilio("RSOYDt4T1cUTdK1PDd93/VVr8B8="), "", twilioURL("https://mycompany.com", ""), twilioBody, 0},
		"Twilio over http":                {twilioForm, "12345", twilio("0ZXoZLH/DfblKGATFgpif+LLRf4="), "", twilioURL("http://mycompany.com", ""), twilioBody, 0},
		"Twilio over http with a port":    {twilioForm, "12345", twilio("Zmvh+3yNM1Phv2jhDCwEM3q5ebU="), "", twilioURL("http://mycompany.com:1234", ""), twilioBody, 0},
		"Twilio JSON":                     {rows["Twilio JSON"].Scheme, "12345", twilio("a9nBmqA0ju/hNViExpshrM61xv4="), "", twilioURL("https://mycompany.com", "&bodySHA256="+digest), twilioJSON, 0},
		"Twilio JSON, no other parameter": {rows["Twilio JSON"].Scheme, "12345", twilio("y77kIzt2vzLz71DgmJGsen2scGs="), "", "https://mycompany.com/myapp.php?bodySHA256=" + digest, twilioJSON, 0},
		// https://github.com/sendgrid/sendgrid-go/blob/main/helpers/eventwebhook/eventwebhook_test.go
		"SendGrid": {sendgrid, sendgridKey,
			map[string]string{"X-Twilio-Email-Event-Webhook-Timestamp": "1588788367",
				"X-Twilio-Email-Event-Webhook-Signature": "MEUCIQCtIHJeH93Y+qpYeWrySphQgpNGNr/U+UyUlBkU6n7RAwIgJTz2C+8a8xonZGi6BpSzoQsbVRamr2nlxFDWYNH2j/0="},
			"", "", `{"category":"example_payload","event":"test_event","message_id":"message_id"}`, 1588788367},
		// https://developers.hubspot.com/docs/guides/apps/authentication/validating-requests
		"HubSpot v2": {rows["HubSpot v2"].Scheme, hubspotKey, map[string]string{"X-HubSpot-Signature-Version": "v2",
			"X-HubSpot-Signature": "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e"}, "GET", "https://www.example.com/webhook_uri", "", 0},
		// Made with the openssl command.
		"dated": {dated, datedKey, map[string]string{"X-Dated": "t=1700000000,v1=" + datedSum}, "", "", body, signedAt},
		"bare":  {bare, bareKey, map[string]string{"X-Bare": bareSum}, "", "", body, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := signature.Request{Method: test.method, URL: test.url, Header: http.Header{}, Body: []byte(test.body), ReceivedAt: time.Unix(test.at, 0)}
			for key, value := range test.header {
				r.Header.Set(key, value)
			}
			if !test.scheme.Present(r) {
				t.Error("not present")
			}
			// What we sign is, byte for byte, what the sender signs.
			if len(test.scheme.Or) == 0 && test.scheme.Method != signature.ECDSA {
				place, again := test.scheme.Signature.In[0].Name, r
				again.Header = r.Header.Clone()
				again.Header.Del(place)
				err := test.scheme.Sign([]byte(test.secret), &again, r.ReceivedAt)
				if got := again.Header.Get(place); err != nil || got == "" || !strings.Contains(r.Header.Get(place), got) {
					t.Errorf("signed as %s, %v", got, err)
				}
			}
			if _, err := verify(t, &test.scheme, [][]byte{[]byte(test.secret)}, r, 0); err != nil {
				t.Errorf("verify: %v", err)
			}
			r.Body = append(r.Body, "&x=y"...)
			if _, err := verify(t, &test.scheme, [][]byte{[]byte(test.secret)}, r, 0); problem(err) != signature.Wrong {
				t.Errorf("with a longer body: %v", err)
			}
		})
	}
}
