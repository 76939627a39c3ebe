package signature_test

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/signature"
)

// Each sender's scheme is valid, and its signature is accepted: with the secret among others, at
// the edge of its tolerance, and not beyond.
func TestVerify_eachScheme_acceptsItsSignature(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, row row) {
		must(t, check(&row.Scheme))
		must(t, row.CheckSecret([]byte(row.key())))
		signed := time.Unix(signedAt, 0).UTC()
		r := row.delivery(row.body)
		if row.HasSignature(r) {
			t.Error("present before it is signed")
		}
		must(t, row.Sign([]byte(row.key()), &r, signed))
		if !row.HasSignature(r) {
			t.Error("signed and not present")
		}
		secrets := [][]byte{[]byte("another"), {}, []byte(row.key()), []byte("a third")}
		for age, want := range row.ages() {
			r.ReceivedAt = signed.Add(age)
			m, err := verify(t, &row.Scheme, secrets, r, 0)
			if problem(err) != want {
				t.Errorf("age %s: %v, want problem %d", age, err, want)
			}
			if err == nil && (m.Secret != 2 || row.Timestamp != nil && !m.SignedAt.Equal(signed)) {
				t.Errorf("age %s: %+v", age, m)
			}
		}
	})
}

// ages are times between signing and receipt, with the expected results.
func (r row) ages() map[time.Duration]signature.Problem {
	if r.Timestamp == nil || r.Timestamp.Unchecked {
		return map[time.Duration]signature.Problem{0: 0, 24 * time.Hour: 0, -24 * time.Hour: 0}
	}
	most := r.Timestamp.Tolerance
	if most == 0 {
		most = signature.DefaultTolerance
	}
	return map[time.Duration]signature.Problem{0: 0, most: 0, -most: 0, most + 1: signature.Stale,
		-most - 1: signature.Future}
}

// No change of one byte is accepted: in a signed body, in the place of the signature, or with
// another secret.
func TestVerify_anyChange_isRejected(t *testing.T) {
	t.Parallel()
	step := 1
	if testing.Short() { // a third of the bytes
		step = 3
	}
	each(t, func(t *testing.T, row row) {
		r := row.delivery(row.body)
		r.ReceivedAt = time.Unix(signedAt, 0)
		must(t, row.Sign([]byte(row.key()), &r, r.ReceivedAt))
		wantRejected := func(what string, r signature.Request, secret string) {
			t.Helper()
			if _, err := verify(t, &row.Scheme, [][]byte{[]byte(secret)}, r, 0); err == nil {
				t.Errorf("accepted: %s", what)
			}
		}
		wantRejected("another secret", r, "another"+signature.DemoSuffix)
		if !row.bodyUnsigned {
			for i := 0; i < len(r.Body); i += step {
				changed := r
				changed.Body = bytes.Clone(r.Body)
				changed.Body[i] ^= 1
				wantRejected(fmt.Sprintf("body with another byte %d", i), changed, row.key())
			}
			changed := r
			changed.Body = append(bytes.Clone(r.Body), 'x')
			wantRejected("a longer body", changed, row.key())
		}
		if place := row.Signature.In[0]; place.Kind == signature.Header {
			name := http.CanonicalHeaderKey(strings.Replace(place.Name, "#", "1", 1))
			value := r.Header.Get(name)
			for i := 0; i < len(value); i += step {
				changed := r
				changed.Header = r.Header.Clone()
				changed.Header.Set(name, value[:i]+"!"+value[i+1:])
				wantRejected(fmt.Sprintf("%s with another byte %d", name, i), changed, row.key())
			}
			changed := r
			changed.Header = r.Header.Clone()
			changed.Header[name] = []string{value, value}
			wantRejected("two headers", changed, row.key())
		}
	})
}

// verify calls Verify, and checks that Explain agrees and shows no secret.
func verify(t interface {
	Helper()
	Errorf(format string, args ...any)
}, s *signature.Scheme, secrets [][]byte, r signature.Request, tolerance time.Duration) (signature.Match, error) {
	t.Helper()
	m, err := s.Verify(secrets, r, tolerance)
	steps := s.Explain(secrets, r, tolerance)
	failed := func(names ...string) bool {
		return slices.ContainsFunc(steps[:len(steps)-1],
			func(s signature.Step) bool { return slices.Contains(names, s.Name) && !s.OK })
	}
	matched := slices.ContainsFunc(steps, func(s signature.Step) bool { return s.Name == "secret" && s.OK })
	agrees := false
	switch problem(err) {
	case 0:
		agrees = matched && !failed("scheme", "place", "time", "reading", "body", "age", "cause")
	case signature.Missing:
		agrees = failed("scheme", "place")
	case signature.Malformed:
		agrees = failed("place", "item", "signature", "time", "reading", "message", "body")
	case signature.Wrong:
		agrees = failed("secret") && !matched || failed("body")
	case signature.Stale, signature.Future:
		agrees = matched && failed("age")
	}
	if last := steps[len(steps)-1]; last.Name != "verdict" || last.OK != (err == nil) || !agrees {
		t.Errorf("verify: %v; explained as %+v", err, steps)
	}
	errorHasNoSecret(t, s, secrets, r, steps, err)
	return m, err
}

var runs = regexp.MustCompile(`[A-Za-z0-9+/_-]{20,}`)

// errorHasNoSecret checks that a message contains no part of a secret or of a correct signature,
// and no control character.
func errorHasNoSecret(t interface {
	Helper()
	Errorf(format string, args ...any)
}, s *signature.Scheme, secrets [][]byte, r signature.Request, steps []signature.Step, err error) {
	t.Helper()
	var said strings.Builder
	for _, step := range steps {
		said.WriteString(step.Detail)
	}
	if err != nil {
		said.WriteString(err.Error())
	}
	hide := func(text string, size int) {
		for i := 0; i+size <= len(text); i += 4 {
			if part := text[i : i+size]; strings.Contains(said.String(), part) {
				t.Errorf("the message contains %q: %+v, %v", part, steps, err)
			}
		}
	}
	for _, secret := range secrets {
		hide(string(secret), 8)
		signed := r
		signed.Header, signed.Body = r.Header.Clone(), bytes.Clone(r.Body)
		if s.Sign(secret, &signed, r.ReceivedAt) != nil {
			continue
		}
		place := s.Signature.In[0]
		place.Name = strings.Replace(place.Name, "#", "1", 1)
		value, _ := signature.Find(signed, place)
		for _, run := range runs.FindAllString(value, -1) {
			hide(run, 16)
		}
	}
	if strings.ContainsFunc(said.String(), func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
		t.Errorf("control characters: %q", said.String())
	}
}

// A signature is accepted in every form that a scheme can have, and no change of one byte of the
// body is.
func TestVerify_randomSchemes_acceptOnlyUnchanged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScheme(t)
		must(t, check(s))
		secret := []byte(demoSecret)
		if s.Method == signature.HMAC || s.Method == signature.Hash {
			secret = rapid.SliceOfN(rapid.Byte(), 12, 80).Draw(t, "secret")
			secret = append(secret, '.') // no demo secret
		}
		content := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
		at := time.Unix(rapid.Int64Range(0, 1<<36).Draw(t, "seconds"), 0)
		r := signature.Request{Header: http.Header{}, Body: content, ReceivedAt: at}
		must(t, s.Sign(secret, &r, at))
		if _, err := s.Verify([][]byte{secret}, r, 0); err != nil {
			t.Fatalf("signed and rejected: %v", err)
		}
		content[rapid.IntRange(0, len(content)-1).Draw(t, "at")] ^= rapid.ByteRange(1, 255).Draw(t, "flip")
		if _, err := s.Verify([][]byte{secret}, r, 0); problem(err) != signature.Wrong {
			t.Fatalf("changed and accepted, or rejected as %v", err)
		}
	})
}

// drawScheme draws every method, digest, encoding, layout and place of the time.
func drawScheme(t *rapid.T) *signature.Scheme {
	s := &signature.Scheme{Name: "drawn",
		Method: rapid.SampledFrom([]signature.Method{signature.HMAC, signature.HMAC, signature.Hash,
			signature.Ed25519, signature.ECDSA}).Draw(t, "method"),
		Digest: rapid.SampledFrom([]signature.Digest{signature.SHA256, signature.SHA1, signature.SHA512}).Draw(t,
			"digest"),
		Encoding: rapid.SampledFrom([]signature.Encoding{signature.Hex, signature.Base64, signature.Base64URL}).Draw(t,
			"encoding"),
		Signature: rapid.SampledFrom([]signature.Layout{
			{In: in("header:X-A")}, {In: in("header:X-A", "header:X-B"), Prefix: "sha256="}, {In: in("header:X-#")},
			{In: in("header:X-A"), Separator: ",", KeySeparator: "=", Item: "v1"},
			{In: in("header:X-A"), Separator: ";",
				TrimSpaces: true, KeySeparator: ":", Item: "s"},
			{In: in("header:X-A"), Separator: ",", Skip: 1}, {In: in("header:X-A"), Group: " ", Separator: ",",
				KeySeparator: "=", Item: "v1", Prefix: "x-"},
		}).Draw(t, "layout"),
	}
	places := []string{"", "header:X-Time"}
	switch {
	case s.Signature.KeySeparator != "":
		places = append(places, "item:t")
	case s.Signature.Skip > 0:
		places = []string{"item:0"}
	}
	message := "{body}"
	if place := rapid.SampledFrom(places).Draw(t, "time"); place != "" {
		units := []signature.Unit{signature.Seconds, signature.Milliseconds, signature.Magnitude}
		if place == "header:X-Time" {
			units = append(units, signature.RFC3339)
		}
		s.Timestamp = at(place, rapid.SampledFrom(units).Draw(t, "unit"))
		message = rapid.SampledFrom([]string{"{timestamp}.{body}", "{body}{timestamp}", "v0:{timestamp}:{body}"}).Draw(
			t, "message")
	}
	if s.Method == signature.Hash {
		message = "{secret}" + message
	}
	s.Message = text(message)
	return s
}

// Explain agrees with Verify for any request, and shows no secret.
func TestExplain_lastStep_agreesWithVerify(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScheme(t)
		secret := []byte(demoSecret)
		at := time.Unix(signedAt, 0)
		r := signature.Request{Header: http.Header{}, Body: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body"),
			ReceivedAt: at}
		must(t, s.Sign(secret, &r, at))
		names := []string{"X-A", "X-B", "X-1", "X-Time"}
		name := rapid.SampledFrom(names).Draw(t, "header")
		value := r.Header.Get(name)
		switch rapid.SampledFrom([]string{"nothing", "body", "newline", "no header", "twice", "garbage", "cut", "extra",
			"secret", "late"}).Draw(t, "spoiled") {
		case "body":
			r.Body = append(bytes.Clone(r.Body), 'x')
		case "newline":
			r.Body = append(bytes.Clone(r.Body), '\n')
		case "no header":
			r.Header.Del(name)
		case "twice":
			r.Header[name] = []string{value, value}
		case "garbage":
			r.Header.Set(name, rapid.String().Draw(t, "garbage"))
		case "cut":
			r.Header.Set(name, value[:rapid.IntRange(0, len(value)).Draw(t, "length")])
		case "extra":
			r.Header.Set(name, value+rapid.StringMatching(`[,; =a-z0-9]{0,20}`).Draw(t, "extra"))
		case "secret":
			secret = []byte("not the one " + rapid.StringMatching(`[a-z]{8}`).Draw(t, "another"))
		case "late":
			r.ReceivedAt = at.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "seconds")) * time.Second)
		}
		_, _ = verify(t, s, [][]byte{[]byte("an unused one"), secret}, r, 0)
	})
}

// Vectors that senders publish, each with its page or program.
func TestVerify_publishedVectors(t *testing.T) {
	t.Parallel()
	rows := catalogue()
	twilioURL := func(host, query string) string { return host + "/myapp.php?foo=1&bar=2" + query }
	const (
		twilioBody = "To=%2B18005551212&From=%2B14158675309&Digits=1234&Caller=%2B14158675309&CallSid=CA1234567890ABCDE"
		digest     = "0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
		twilioJSON = `{"property": "value", "boolean": true}`
		hubspotKey = "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy"
		slackBody  = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow" +
			"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner" +
			"&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands" +
			"%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN" +
			"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
		standardBody = `{"test": 2432232314}`
		standardID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	)
	twilio := func(value string) map[string]string { return map[string]string{"X-Twilio-Signature": value} }
	standard := func(value string) map[string]string {
		return map[string]string{"Webhook-Id": standardID, "Webhook-Timestamp": "1614265330",
			"Webhook-Signature": value}
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
			map[string]string{"X-Hub-Signature-256": "sha256=" +
				"757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}, "", "", "Hello, World!", 0},
		// https://circleci.com/docs/guides/integration/outbound-webhooks/
		"CircleCI": {rows["CircleCI"].Scheme, "secret", map[string]string{"Circleci-Signature": "v1=" +
			"734cc62f32841568f45715aeb9f4d7891324e6d948e4c6c60c0621cdac48623a,v2=00"}, "", "", "hello world", 0},
		// https://docs.slack.dev/authentication/verifying-requests-from-slack
		"Slack": {rows["Slack"].Scheme, "8f742231b10e8888abcd99yyyzzz85a5",
			map[string]string{"X-Slack-Request-Timestamp": "1531420618",
				"X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"}, "", "",
			slackBody, 1531420618},
		// https://github.com/standard-webhooks/standard-webhooks/tree/main/libraries/go (its tests)
		"Standard Webhooks": {rows["Standard Webhooks"].Scheme, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			standard("v1a,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), "", "", standardBody, 1614265330},
		"Standard Webhooks without a prefix": {rows["Standard Webhooks"].Scheme, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			standard("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="), "", "", standardBody, 1614265330},
		"Standard Webhooks v1a": {rows["Standard Webhooks v1a"].Scheme,
			"whsk_VEVTVFNJR05JTkdLRVlET05PVFVTRVRISVNGT1JBTlk=",
			standard("v1,AAAA v1a," +
				"tQ9V2XOqn7jL/DQenEFpqIugdBVtiMmER5mhSkXBNwM0mkATuDe6KYYUuxqtaiHeYGb7KaaBRdM5WqyeFiL8Ag=="),
			"", "", standardBody, 1614265330},
		// https://github.com/twilio/twilio-go/blob/main/client/request_validator_test.go
		"Twilio": {twilioForm, "12345", twilio("RSOYDt4T1cUTdK1PDd93/VVr8B8="), "",
			twilioURL("https://mycompany.com", ""), twilioBody, 0},
		"Twilio over http": {twilioForm, "12345", twilio("0ZXoZLH/DfblKGATFgpif+LLRf4="), "",
			twilioURL("http://mycompany.com", ""), twilioBody, 0},
		"Twilio over http with a port": {twilioForm, "12345", twilio("Zmvh+3yNM1Phv2jhDCwEM3q5ebU="), "",
			twilioURL("http://mycompany.com:1234", ""), twilioBody, 0},
		"Twilio JSON": {rows["Twilio JSON"].Scheme, "12345", twilio("a9nBmqA0ju/hNViExpshrM61xv4="),
			"", twilioURL("https://mycompany.com", "&bodySHA256="+digest), twilioJSON, 0},
		"Twilio JSON, no other parameter": {rows["Twilio JSON"].Scheme, "12345", twilio("y77kIzt2vzLz71DgmJGsen2scGs="),
			"", "https://mycompany.com/myapp.php?bodySHA256=" + digest, twilioJSON, 0},
		// https://github.com/sendgrid/sendgrid-go/blob/main/helpers/eventwebhook/eventwebhook_test.go
		"SendGrid": {sendgrid, sendgridKey,
			map[string]string{"X-Twilio-Email-Event-Webhook-Timestamp": "1588788367",
				"X-Twilio-Email-Event-Webhook-Signature": "MEUCIQCtIHJeH93Y+qpYeWrySphQgpNGNr/U+UyUlBkU6n7RAwIg" +
					"JTz2C+8a8xonZGi6BpSzoQsbVRamr2nlxFDWYNH2j/0="},
			"", "", `{"category":"example_payload","event":"test_event","message_id":"message_id"}`, 1588788367},
		// https://developers.hubspot.com/docs/guides/apps/authentication/validating-requests
		"HubSpot v2": {rows["HubSpot v2"].Scheme, hubspotKey, map[string]string{"X-HubSpot-Signature-Version": "v2",
			"X-HubSpot-Signature": "eee2dddcc73c94d699f5e395f4b9d454a069a6855fbfa152e91e88823087200e"}, "GET",
			"https://www.example.com/webhook_uri", "", 0},
		// Made with the openssl command.
		"dated": {dated, datedKey, map[string]string{"X-Dated": "t=1700000000,v1=" + datedSum}, "", "", body, signedAt},
		"bare":  {bare, bareKey, map[string]string{"X-Bare": bareSum}, "", "", body, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := signature.Request{Method: test.method, URL: test.url, Header: http.Header{}, Body: []byte(test.body),
				ReceivedAt: time.Unix(test.at, 0)}
			for key, value := range test.header {
				r.Header.Set(key, value)
			}
			if !test.scheme.HasSignature(r) {
				t.Error("not present")
			}
			// Our signature is, byte for byte, the sender's.
			if len(test.scheme.Or) == 0 && test.scheme.Method != signature.ECDSA {
				place, again := test.scheme.Signature.In[0].Name, r
				again.Header = r.Header.Clone()
				again.Header.Del(place)
				err := test.scheme.Sign([]byte(test.secret), &again, r.ReceivedAt)
				if got := again.Header.Get(place); err != nil || got == "" || !strings.Contains(r.Header.Get(place),
					got) {
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
