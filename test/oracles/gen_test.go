package oracles_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"pgregory.net/rapid"
)

// pair is one secret on both sides.
func pair(secrets *rapid.Generator[string]) *rapid.Generator[keys] {
	return rapid.Map(secrets, func(s string) keys { return keys{s, s} })
}

var (
	// textKeys are used as they are.
	textKeys = pair(rapid.StringMatching(`[!-~]{12,40}`))
	// stripeKeys are used as they are, and look like a signing secret of Stripe.
	stripeKeys = pair(rapid.StringMatching(`whsec_[!-~]{12,40}`))
	// hexKeys are the bytes that they spell.
	hexKeys = pair(rapid.StringMatching(`[0-9A-F]{64}`))
	// standardKeys are those of Standard Webhooks.
	standardKeys = pair(rapid.Map(rapid.SliceOfN(rapid.Byte(), 24, 64), func(b []byte) string {
		return "whsec_" + base64.StdEncoding.EncodeToString(b)
	}))
	// foreignKeys have letters that NFKD takes apart, each of which differs from the others when
	// that is done.
	foreignKeys = pair(rapid.StringMatching(`[a-zåäöüéñ①Ⅷﬁ가각힣Å]{12,24}`))
	// ed25519Keys are pairs; receivers have theirs as Discord shows it.
	ed25519Keys = rapid.Map(rapid.SliceOfN(rapid.Byte(), ed25519.SeedSize, ed25519.SeedSize), func(seed []byte) keys {
		private := ed25519.NewKeyFromSeed(seed)
		return keys{"whsk_" + base64.StdEncoding.EncodeToString(seed),
			hex.EncodeToString(private.Public().(ed25519.PublicKey))}
	})
	ecdsaKeys = rapid.Map(rapid.IntRange(0, len(ecdsaPairs())-1), func(i int) keys { return ecdsaPairs()[i] })
)

// ecdsaPairs are some pairs; a public key is base64 as SendGrid shows it.
var ecdsaPairs = sync.OnceValue(func() []keys {
	var out []keys
	for range 3 {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		signer, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			panic(err)
		}
		verifier, err := x509.MarshalPKIXPublicKey(private.Public())
		if err != nil {
			panic(err)
		}
		out = append(out, keys{string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: signer})),
			base64.StdEncoding.EncodeToString(verifier)})
	}
	return out
})

// raw are bodies for SDKs that look at bytes only.
var raw = rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 200), func(b []byte) string { return string(b) })

// words are texts that JavaScript has no other spelling of. U+FFFD stands there for what is no
// UTF-8.
var words = rapid.Map(rapid.String(), func(s string) string {
	return strings.NewReplacer("\ufffd", "", "\u2028", "", "\u2029", "").Replace(s)
})

// names are names of fields.
var names = rapid.StringMatching(`[a-z]{1,5}`)

// objects are JSON objects, written as JSON.stringify writes them.
var objects = objectsWith(nil)

// objectsWith are objects that have some members besides.
func objectsWith(members func(t *rapid.T) map[string]any) *rapid.Generator[string] {
	scalars := rapid.OneOf(rapid.Just[any](nil), rapid.Map(words, as), rapid.Map(rapid.Bool(), as),
		rapid.Map(rapid.Int32(), as))
	values := rapid.OneOf(scalars, scalars, rapid.Map(rapid.SliceOfN(scalars, 0, 3), as),
		rapid.Map(rapid.MapOfN(names, scalars, 0, 3), as))
	return rapid.Custom(func(t *rapid.T) string {
		body := rapid.MapOfN(names, values, 0, 4).Draw(t, "object")
		if members != nil {
			for name, value := range members(t) {
				body[name] = value
			}
		}
		return compact(body)
	})
}

func as[T any](v T) any { return v }

// compact is JSON without spaces, and without the escapes of HTML.
func compact(v any) string {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // nothing that is generated cannot be written
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// forms are forms without repeated fields.
var forms = rapid.Map(rapid.MapOfN(names, words, 1, 5), func(m map[string]string) string {
	form := url.Values{}
	for name, value := range m {
		form.Set(name, value)
	}
	return form.Encode()
})

// repeated are forms whose fields may come several times. Beyond 16 bits JavaScript sorts letters
// otherwise than others do.
var repeated = rapid.Map(rapid.MapOfN(names, rapid.SliceOfN(words.Filter(short), 1, 3), 1, 4),
	func(m map[string][]string) string { return url.Values(m).Encode() })

func short(s string) bool { return !strings.ContainsFunc(s, func(r rune) bool { return r > 0xffff }) }

// sameForm tells whether two forms are the same to Twilio: their fields by name, each with its
// values, without anything between.
func sameForm(a, b string) bool { return joined(a) == joined(b) }

func joined(text string) string {
	form, err := url.ParseQuery(text)
	if err != nil {
		return "no form: " + text
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(form)) {
		values := slices.Sorted(slices.Values(form[name]))
		for _, value := range slices.Compact(values) {
			out.WriteString(name + value)
		}
	}
	return out.String()
}

// tampered changes one of the texts or numbers in an object within a body.
func tampered(t *rapid.T, body, object string, fields ...string) string {
	var root map[string]any
	if err := json.Unmarshal([]byte(body), &root); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	tamper(t, root[object].(map[string]any), fields)
	return compact(root)
}

func tamper(t *rapid.T, object map[string]any, fields []string) {
	name := rapid.SampledFrom(fields).Draw(t, "field")
	switch value := object[name].(type) {
	case string:
		object[name] = changed(t, value, true)
	case float64:
		object[name] = value + 1
	default:
		object[name] = "x"
	}
}

// tamperedPayment changes what Adyen signs of one of the payments of a delivery, or its signature.
func tamperedPayment(t *rapid.T, body string) string {
	var root struct {
		Live  string `json:"live"`
		Items []struct {
			Item map[string]any `json:"NotificationRequestItem"`
		} `json:"notificationItems"`
	}
	if err := json.Unmarshal([]byte(body), &root); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	item := rapid.SampledFrom(root.Items).Draw(t, "item").Item
	switch rapid.IntRange(0, 4).Draw(t, "signed") {
	case 0:
		tamper(t, item["amount"].(map[string]any), []string{"currency", "value"})
	case 1:
		data := item["additionalData"].(map[string]any)
		value := data["hmacSignature"].(string)
		data["hmacSignature"] = map[bool]string{true: "B", false: "A"}[value[0] == 'A'] + value[1:]
	default:
		tamper(t, item, []string{"pspReference", "originalReference", "merchantAccountCode", "merchantReference",
			"eventCode", "success"})
	}
	return compact(root)
}
