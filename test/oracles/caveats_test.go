package oracles_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

const secret = "whsec_secret of both sides"

// mac is a signature that nobody's SDK made.
func mac(newHash func() hash.Hash, message string) []byte {
	h := hmac.New(newHash, []byte(secret))
	h.Write([]byte(message))
	return h.Sum(nil)
}

func hexMAC(message string) string { return hex.EncodeToString(mac(sha256.New, message)) }
func base64MAC(message string) string {
	return base64.StdEncoding.EncodeToString(mac(sha256.New, message))
}
func twilioMAC(message string) string {
	return base64.StdEncoding.EncodeToString(mac(sha1.New, message))
}

// caveat is a delivery that is worth a look because somebody may read it otherwise.
type caveat struct {
	sdk    string
	why    string
	header map[string]string
	query  string
	body   string
	want   verdict
}

// caveats are made when they are asked for: the clocks of SDKs are this machine's.
func caveats() []caveat {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	moment := time.Now().UTC().Add(-5 * time.Second).Format(time.RFC3339)
	linear := func(timestamp string) string { return `{"type":"Issue","webhookTimestamp":` + timestamp + `}` }
	ms := strconv.FormatInt(time.Now().UnixMilli(), 10)
	box := func(signed string) map[string]string {
		return map[string]string{"Box-Signature-Version": "1", "Box-Signature-Algorithm": "HmacSHA256",
			"Box-Delivery-Timestamp": moment, "Box-Signature-Primary": base64MAC(signed + moment)}
	}
	return []caveat{
		{"stripe-go", "one signature for each secret", map[string]string{"Stripe-Signature": "t=" + now + ",v1=" +
			hexMAC("another") + ",v1=" + hexMAC(now+".{}") + ",v0=00"}, "", "{}", verdict{true, true}},
		{"stripe-go", "a right signature of a version for tests is none",
			map[string]string{"Stripe-Signature": "t=" + now + ",v0=" + hexMAC(now+".{}")}, "", "{}", verdict{}},
		{"paddle-go-sdk", "several signatures while the secret changes: it reads one only",
			map[string]string{"Paddle-Signature": "ts=" + now + ";h1=" + hexMAC("another") + ";h1=" +
				hexMAC(now+":{}")}, "", "{}", verdict{true, false}},
		{"go-pagerduty", "one signature for each secret", map[string]string{"X-Pagerduty-Signature": "v1=" +
			hexMAC("another") + ",v1=" + hexMAC("{}")}, "", "{}", verdict{true, true}},
		{"go-pagerduty", "a signature of a version to come is none", map[string]string{"X-Pagerduty-Signature": "v2=" +
			hexMAC("{}")}, "", "{}", verdict{}},
		{"go-github", "SHA-1 alone: the SDK takes it, here it proves nothing",
			map[string]string{"Content-Type": "application/json", "X-Hub-Signature": "sha1=" +
				hex.EncodeToString(mac(sha1.New, "{}"))}, "", "{}", verdict{false, true}},
		{"go-github", "SHA-1 where SHA-256 belongs: the SDK goes by what stands before the digits",
			map[string]string{"Content-Type": "application/json", "X-Hub-Signature-256": "sha1=" +
				hex.EncodeToString(mac(sha1.New, "{}"))}, "", "{}", verdict{false, true}},
		{"go-playground/webhooks/github", "SHA-1 alone", map[string]string{"X-Github-Event": "push",
			"X-Hub-Signature": "sha1=" + hex.EncodeToString(mac(sha1.New, "{}"))}, "", "{}", verdict{}},
		{"@octokit/webhooks-methods", "SHA-1 where SHA-256 belongs", map[string]string{"X-Hub-Signature-256": "sha1=" +
			hex.EncodeToString(mac(sha1.New, "{}"))}, "", "{}", verdict{}},
		{"twilio, forms", "a field that comes twice: each value once, in order",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "Digits12Digits34SidCA1")}, "",
			"Sid=CA1&Digits=34&Digits=12&Digits=34", verdict{true, true}},
		{"twilio-go, forms", "a field that comes twice: here as the SDK for Node has it, while the one for Go takes " +
			"the first value",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "Digits12Digits34SidCA1")}, "",
			"Sid=CA1&Digits=34&Digits=12&Digits=34", verdict{true, false}},
		{"twilio-go, forms", "a field that comes twice, by its first value",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "Digits34SidCA1")}, "",
			"Sid=CA1&Digits=34&Digits=12", verdict{false, true}},
		{"twilio, forms", "beyond 16 bits JavaScript sorts the values of one field otherwise: U+FFE5 after U+1F600, " +
			"which other languages put first",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "a\U0001f600a\uffe5")}, "",
			"a=%EF%BF%A5&a=%F0%9F%98%80", verdict{false, true}},
		{"twilio, forms", "fields have nothing between them: a name and its value may be cut elsewhere",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "ab")}, "", "ab=", verdict{true, true}},
		{"twilio, forms", "the default port",
			map[string]string{"X-Twilio-Signature": twilioMAC("https://hooks.example:443/webhooks/shop" + "ab")}, "",
			"a=b", verdict{true, true}},
		{"twilio-go, forms", "the default port",
			map[string]string{"X-Twilio-Signature": twilioMAC("https://hooks.example:443/webhooks/shop" + "ab")}, "",
			"a=b", verdict{true, true}},
		{"twilio-go, forms", "another port",
			map[string]string{"X-Twilio-Signature": twilioMAC("https://hooks.example:444/webhooks/shop" + "ab")}, "",
			"a=b", verdict{}},
		{"twilio, JSON", "another body than the address has the digest of",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "?bodySHA256=" + hexSum("{}"))}, "bodySHA256=" +
				hexSum("{}"), "[]", verdict{}},
		{"twilio, JSON", "an empty form in place of the body",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "?bodySHA256=" + hexSum("{}"))}, "bodySHA256=" +
				hexSum("{}"), "&", verdict{}},
		{"twilio-go, JSON", "an empty form in place of the body",
			map[string]string{"X-Twilio-Signature": twilioMAC(address + "?bodySHA256=" + hexSum("{}"))}, "bodySHA256=" +
				hexSum("{}"), "&", verdict{}},
		{"box-node-sdk", "the body with its letters escaped: the SDK tries that too", box(`{"a":"\u00e9"}`), "",
			`{"a":"é"}`, verdict{false, true}},
		{"box-node-sdk", "the body as it is", box(`{"a":"é"}`), "", `{"a":"é"}`, verdict{true, true}},
		{"@easypost/api", "a whole number for a weight: the SDK writes .0 after it before it looks",
			map[string]string{"X-Hmac-Signature": "hmac-sha256-hex=" + hexMAC(`{"weight":1}`)}, "", `{"weight":1}`,
			verdict{true, false}},
		{"@easypost/api", "a weight as EasyPost writes it", map[string]string{"X-Hmac-Signature": "hmac-sha256-hex=" +
			hexMAC(`{"weight":1.0}`)}, "", `{"weight":1.0}`, verdict{true, true}},
		{"@linear/sdk", "the time as a number", map[string]string{"Linear-Signature": hexMAC(linear(ms))}, "",
			linear(ms), verdict{true, true}},
		{"@linear/sdk", "no time", map[string]string{"Linear-Signature": hexMAC(`{"type":"Issue"}`),
			"Linear-Timestamp": ms}, "", `{"type":"Issue"}`, verdict{}},
		{"@linear/sdk", "a time long ago, beside an unsigned one of today",
			map[string]string{"Linear-Signature": hexMAC(linear("1700000000000")), "Linear-Timestamp": ms}, "",
			linear("1700000000000"), verdict{}},
		{"@workos-inc/node", "a body with spaces: the SDK looks at one without",
			map[string]string{"Workos-Signature": "t=" + ms + ", v1=" + hexMAC(ms+`.{"a": 1}`)}, "", `{"a": 1}`,
			verdict{true, false}},
		{"discord-interactions", "no signature", map[string]string{"X-Signature-Timestamp": now}, "", "{}", verdict{}},
	}
}

func hexSum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// What is known of SDKs is so, and what Postern makes of the same stands beside it.
func TestCaveats(t *testing.T) {
	t.Parallel()
	sdks := slices.Concat(goSDKs(), nodeSDKs())
	child(t)
	for n, c := range caveats() {
		t.Run(c.sdk+", "+c.why, func(t *testing.T) { // one after the other: they were signed just now
			c := caveats()[n]
			i := slices.IndexFunc(sdks, func(o *oracle) bool { return o.sdk == c.sdk })
			d := &provider.Delivery{Header: http.Header{}, Query: c.query, Body: []byte(c.body)}
			for name, value := range c.header {
				d.Header.Set(name, value)
			}
			k := keys{secret, secret}
			if c.sdk == "discord-interactions" {
				k = ed25519Keys.Example(1)
			}
			if v := sdks[i].ask(t, k, address, d); v != c.want {
				t.Errorf("%+v, want %+v: %s", v, c.want, shown(d))
			}
		})
	}
}
