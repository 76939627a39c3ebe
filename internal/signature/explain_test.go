package signature_test

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/signature"
)

// The exact texts of an explanation, because operators read them.
func TestExplain_steps_areDescribed(t *testing.T) {
	t.Parallel()
	r := request("X-Dated", "t=1700000000,v0=00,v1="+datedSum)
	r.Header.Set("X-Other", "x")
	got := func(r signature.Request, secrets ...string) []string {
		var in [][]byte
		for _, secret := range secrets {
			in = append(in, []byte(secret))
		}
		var out []string
		for _, step := range dated.Explain(in, r, 0) {
			mark := "FAIL "
			if step.OK {
				mark = "ok "
			}
			out = append(out, mark+step.Name+": "+step.Detail)
		}
		return out
	}
	read := []string{
		`ok place: expected the X-Dated header: it has 86 bytes`,
		`ok item: item:t is the signed time; it has 10 bytes`,
		`ok item: the item under "v0" is not a signature of this scheme; it has 2 bytes`,
		`ok signature: expected 64 hexadecimal digits, HMAC-SHA-256, found 64 hexadecimal digits`,
		`ok time: item:t is "1700000000", which is 2023-11-14T22:13:20Z`,
	}
	right := append(slices.Clone(read),
		`ok message: {timestamp}.{body} is signed, here 25 bytes: "1700000000.{\"id\":\"evt_1\"}"; `+
			`SHA-256 84ec3e96affce72cf265ab7a61281bea0d32a4ed87659cd4028bac4489209531`)
	wrong := append(slices.Clone(read),
		`ok message: {timestamp}.{body} is signed, here 26 bytes: "1700000000.{\"id\":\"evt_1\"}\n"; `+
			`SHA-256 689e870d17fcbb32f256e61353aaaa73e96c866ae7fc8f17bcfde1f1797a1f5b`)
	spoiled := r
	spoiled.Body = append(bytes.Clone(r.Body), '\n')
	tests := []struct {
		name string
		got  []string
		want []string
	}{
		{"accepted", got(r, "another", "", datedKey), append(slices.Clone(right),
			`FAIL secret: secret 1 does not match any signature`,
			`FAIL secret: secret 2 cannot be used: it is empty; an empty secret would let anyone sign`,
			`ok secret: secret 3 matches a signature`,
			`ok age: signed 0s before receipt; 5m0s are allowed in both directions`,
			`ok verdict: secret 3 matches the signature`)},
		{"a newline too many", got(spoiled, datedKey), append(slices.Clone(wrong),
			`FAIL secret: secret 1 does not match any signature`,
			`FAIL cause: it matches without the newline at the body's end: an editor or a shell added it `+
				`(printf '%s' and editors in binary mode do not)`,
			`FAIL verdict: X-Dated header: none of 1 secrets matches any of 1 signatures over `+
				`{timestamp}.{body}, 15 bytes of body`)},
		{"nothing there", got(with(r, "X-Dated"), datedKey), []string{
			`FAIL place: expected the X-Dated header: it is missing. Present are: "X-Other"`,
			`FAIL verdict: no X-Dated header`}},
		{"another form", got(with(r, "X-Dated", "t=1700000000,v1=63DZ3HlbW3VQ5bJrI5Y1s1KU32pOJnNPShO1/ENl5Kw="),
			datedKey), []string{
			`ok place: expected the X-Dated header: it has 60 bytes`,
			`ok item: item:t is the signed time; it has 10 bytes`,
			`FAIL signature: expected 64 hexadecimal digits, HMAC-SHA-256, found 44 characters of base64: ` +
				`it is not hexadecimal`,
			`FAIL verdict: X-Dated header cannot be read: it is not hexadecimal`}},
	}
	for _, test := range tests {
		if diff := cmp.Diff(test.want, test.got); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
}

// Each common mistake is recognized and described.
func TestExplain_commonMistakes_areNamed(t *testing.T) {
	t.Parallel()
	const secret, pretty = "whsec_bWFyeSBoYWQgYSBsaXR0bGUgbGFtYiEh",
		"{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": \"x: y, z\"\n}"
	const slash = "a slash at the end of the url's path"
	const compact, python = `{"a":[1,2],"b":"x: y, z"}`, `{"a": [1, 2], "b": "x: y, z"}`
	plain := signature.Scheme{Name: "plain", Signature: header("X-S"), Message: text("{body}")}
	type side struct {
		scheme            signature.Scheme
		secret, url, body string
	}
	type mistake struct {
		sent, got side
		want      string
	}
	curl := strings.ReplaceAll(pretty, "\n", "")
	encoded := base64.StdEncoding.EncodeToString([]byte(compact))
	// changed returns the scheme plain with a change.
	changed := func(change func(s *signature.Scheme)) signature.Scheme {
		s := plain
		change(&s)
		return s
	}
	// The sender and the recipient differ in the body, the secret, the scheme or the URL.
	bodies := func(sent, got, want string) mistake {
		return mistake{side{plain, secret, "", sent}, side{plain, secret, "", got}, want}
	}
	secrets := func(sent, got, want string) mistake {
		return mistake{side{plain, sent, "", compact}, side{plain, got, "", compact}, want}
	}
	schemes := func(sent, got signature.Scheme, secret, want string) mistake {
		return mistake{side{sent, secret, "", compact}, side{got, secret, "", compact}, want}
	}
	withURL := changed(func(s *signature.Scheme) { s.Message = text("{url}{body}") })
	urls := func(sent, got, want string) mistake {
		return mistake{side{withURL, secret, sent, compact}, side{withURL, secret, got, compact}, want}
	}
	prefixed := changed(func(s *signature.Scheme) { s.Signature.Prefix = "sha256=" })
	sixtyFour := changed(func(s *signature.Scheme) { s.Encoding = signature.Base64 })
	sha1 := changed(func(s *signature.Scheme) { s.Digest = signature.SHA1 })
	decoded := changed(func(s *signature.Scheme) { s.Key = whsec })
	hexKeyed := changed(func(s *signature.Scheme) { s.Key = hexed })
	hash := changed(func(s *signature.Scheme) { s.Method, s.Message = signature.Hash, text("{secret}{body}") })
	tests := map[string]mistake{
		"newline added":    bodies(compact, compact+"\n", "without the newline at the body's end"),
		"newline removed":  bodies(compact+"\n", compact, "with a newline after the body"),
		"CR LF removed":    bodies(compact+"\r\n", compact, "with CR and LF after the body"),
		"CR LF for LF":     bodies("a\nb", "a\r\nb", "with LF for each CR LF"),
		"LF for CR LF":     bodies("a\r\nb", "a\nb", "with CR LF for each LF"),
		"BOM":              bodies(compact, "\xef\xbb\xbf"+compact, "without the byte order mark"),
		"base64 body":      bodies(compact, encoded, "with the body decoded from base64"),
		"JSON indented":    bodies(compact, pretty, "with the JSON written without spaces"),
		"JSON compacted":   bodies(pretty, compact, "with the JSON indented by two spaces"),
		"curl -d @file":    bodies(pretty, curl, "with the JSON indented by two spaces"),
		"JSON from Python": bodies(python, compact, "with the JSON written as Python does"),
		"line breaks":      bodies("ab", "a\r\nb\n", "without the line breaks"),
		"space at secret":  secrets(secret, " "+secret+"\n", "without the white space around the secret"),
		"quoted secret":    secrets(secret, `"`+secret+`"`, "without the quotes around the secret"),
		"secret's prefix":  secrets("abc", "key_abc", "without the secret's prefix"),
		"prefix cut off":   secrets(secret, secret[6:], `with "whsec_" before the secret`),
		"secret is text":   schemes(plain, decoded, secret, "with the secret used verbatim"),
		"secret is base64": schemes(decoded, plain, secret, "with the secret decoded from base64, without its prefix"),
		"secret is hex":    schemes(hexKeyed, plain, hexKey, "with the secret decoded from hexadecimal"),
		"https":            urls("https://a.example/x", "http://a.example/x", "with https instead of http"),
		"http":             urls("http://a.example/x", "https://a.example/x", "with http instead of https"),
		"slash":            urls("https://a.example/x/?a=1", "https://a.example/x?a=1", slash),
		"no slash":         urls("https://a.example/x", "https://a.example/x/", slash),
		"query":            urls("https://a.example/x", "https://a.example/x?a=1", "without the query of the url"),
		"port":             urls("https://a.example:443/x", "https://a.example/x", "the port in the url"),
		"prefix":           schemes(prefixed, plain, secret, `as 64 hexadecimal digits, HMAC-SHA-256, after "sha256="`),
		"no prefix":        schemes(plain, prefixed, secret, "as 64 hexadecimal digits, HMAC-SHA-256"),
		"base64":           schemes(sixtyFour, plain, secret, "as 44 characters of base64, HMAC-SHA-256"),
		"SHA-1":            schemes(sha1, plain, secret, "as 40 hexadecimal digits, HMAC-SHA-1"),
		"hash, newline": {side{hash, secret, "", compact}, side{hash, secret, "", compact + "\n"},
			"without the newline at the body's end"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := signature.Request{URL: test.sent.url, Header: http.Header{}, Body: []byte(test.sent.body),
				ReceivedAt: time.Unix(signedAt, 0)}
			must(t, test.sent.scheme.Sign([]byte(test.sent.secret), &sent, sent.ReceivedAt))
			got := sent
			got.URL, got.Body = test.got.url, []byte(test.got.body)
			secrets := [][]byte{[]byte("another"), []byte(test.got.secret)}
			if _, err := verify(t, &test.got.scheme, secrets, got, 0); err == nil {
				t.Fatal("accepted as it is")
			}
			var explanations []string
			for _, step := range test.got.scheme.Explain(secrets, got, 0) {
				if step.Name == "cause" {
					explanations = append(explanations, step.Detail)
				}
			}
			if len(explanations) != 1 || !strings.HasPrefix(explanations[0], "it matches "+test.want) &&
				!strings.Contains(explanations[0], test.want) {
				t.Errorf("explanations %q; want %q", explanations, test.want)
			}
			if string(got.Body) != test.got.body {
				t.Error("the body was changed by looking for mistakes")
			}
		})
	}
}

// If other bytes are signed than the scheme says, the common messages are tried.
func TestExplain_commonMessages_areTried(t *testing.T) {
	t.Parallel()
	plain := signature.Scheme{Name: "plain", Signature: header("X-S"), Message: text("{body}")}
	timed := plain
	timed.Timestamp, timed.Message = &signature.Clock{From: signature.MustRef("header:X-Time")},
		text("{timestamp}.{body}")
	signed := func(s signature.Scheme, message string) *signature.Scheme { s.Message = text(message); return &s }
	for message, test := range map[string]struct{ sent, got *signature.Scheme }{
		"{body}":                                   {&plain, &timed},
		"{timestamp}{body}":                        {signed(timed, "{timestamp}{body}"), &timed},
		"{timestamp}:{body}":                       {signed(timed, "{timestamp}:{body}"), &timed},
		"v0:{timestamp}:{body}":                    {signed(timed, "v0:{timestamp}:{body}"), &timed},
		"{header:X-Msg-Id}.{timestamp}.{body}":     {signed(timed, "{header:X-Msg-Id}.{timestamp}.{body}"), &timed},
		"{header:X-Time}.{body}":                   {&timed, &plain},
		"{header:X-Msg-Id}.{header:X-Time}.{body}": {signed(timed, "{header:X-Msg-Id}.{timestamp}.{body}"), &plain},
	} {
		t.Run(message, func(t *testing.T) {
			t.Parallel()
			r := signature.Request{Header: http.Header{"X-Msg-Id": {"msg_1"}, "X-Time": {"1700000000"}},
				Body: []byte(`{"id":"evt_1"}`), ReceivedAt: time.Unix(signedAt, 0)}
			must(t, test.sent.Sign([]byte("abc"), &r, time.Unix(1700000000, 0)))
			steps := test.got.Explain([][]byte{[]byte("abc")}, r, 0, "main")
			want := "it matches with " + message + " as the signed message, instead of " + test.got.Message.String()
			if !slices.ContainsFunc(steps, func(s signature.Step) bool {
				return s.Name == "cause" && s.Detail == want
			}) {
				t.Errorf("%+v lack %q", steps, want)
			}
			if !slices.ContainsFunc(steps,
				func(s signature.Step) bool { return s.Detail == "secret main does not match any signature" }) {
				t.Errorf("%+v do not name the secret", steps)
			}
		})
	}
}

// A signature of another length is not OK, even if its encoding is valid.
func TestExplain_shortSignature_isNotOK(t *testing.T) {
	t.Parallel()
	for _, step := range dated.Explain([][]byte{[]byte(datedKey)}, request("X-Dated", "t=1700000000,v1=00ff"), 0) {
		if step.Name == "signature" && (step.OK || !strings.Contains(step.Detail, "it has 2 bytes instead of 32")) {
			t.Errorf("%+v", step)
		}
	}
}

// A forged or missing signature gives no cause.
func TestExplain_forged_hasNoExplanation(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, row row) {
		r := row.delivery(row.body)
		r.ReceivedAt = time.Unix(signedAt, 0)
		for _, signed := range []bool{false, true} {
			if signed {
				if err := row.Sign([]byte("forged"+signature.DemoSuffix), &r, r.ReceivedAt); err != nil &&
					row.Method != signature.RSA {
					t.Fatal(err)
				}
			}
			for _, step := range row.Explain([][]byte{[]byte(row.key())}, r, 0) {
				if step.Name == "cause" {
					t.Errorf("signed %t: %s", signed, step.Detail)
				}
			}
		}
	})
}

// The body may also be changed if only its digest is signed.
func TestExplain_changedBody_isNamed(t *testing.T) {
	t.Parallel()
	row := catalogue()["Twilio JSON"]
	r, _ := signedRow(t, "Twilio JSON")
	r.Body = append(r.Body, '\n')
	steps := row.Explain([][]byte{[]byte(row.key())}, r, 0)
	names := []string{}
	for _, step := range steps {
		names = append(names, step.Name)
	}
	if !slices.Equal(names[len(names)-3:], []string{"body", "cause", "verdict"}) || steps[len(steps)-1].OK {
		t.Errorf("%+v", steps)
	}
}

// If the message contains the secret, the secret is masked and the rest is shown.
func TestExplain_secretInMessage_isMasked(t *testing.T) {
	t.Parallel()
	r, _ := signedRow(t, "HubSpot v1")
	row := catalogue()["HubSpot v1"]
	for _, step := range row.Explain([][]byte{[]byte(row.key())}, r, 0) {
		if step.Name == "message" && step.Detail != `{secret}{body} is signed, here 44 bytes: `+
			`"[secret]{\"id\":\"evt_1\",\"data\":{\"id\":\"obj_1\"}}"` {
			t.Error(step.Detail)
		}
	}
}
