package signature_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

func TestCheckSecret_keyForms(t *testing.T) {
	t.Parallel()
	decoded := "mary had a little lamb!!"
	der, err := x509.MarshalPKIXPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	must(t, err)
	tests := map[string]struct {
		key    signature.Key
		secret string
		want   string // empty: it is not a key
	}{
		"text":                   {signature.Key{}, "whsec_x", "whsec_x"},
		"base64":                 {base64d, base64Key, decoded},
		"base64 without padding": {base64d, "YQ", "a"},
		"base64 with padding":    {base64d, "YQ==", "a"},
		"base64 of URLs":         {base64d, "-_-_", "\xfb\xff\xbf"},
		"no base64":              {base64d, "a b", ""},
		"hexadecimal":            {hexed, "00fF", "\x00\xff"},
		"no hexadecimal":         {hexed, "0g", ""},
		"SHA-1": {signature.Key{Form: signature.KeySHA1}, "abc",
			"\xa9\x99\x3e\x36\x47\x06\x81\x6a\xba\x3e\x25\x71\x78\x50\xc2\x6c\x9c\xd0\xd8\x9d"},
		"NFKD":                      {signature.Key{Form: signature.KeyNFKD}, "\u00e9\ufb01", "e\u0301fi"},
		"NFKD of no UTF-8":          {signature.Key{Form: signature.KeyNFKD}, "a\xff", "a\xff"},
		"prefix":                    {whsec, standard, decoded},
		"longer prefix":             {whsec, "v1," + standard, decoded},
		"prefix that is not there":  {whsec, base64Key, decoded},
		"prefix that must be there": {prefixOnly, base64Key, ""},
		"prefix that is there":      {prefixOnly, standard, decoded},
		"plain else":                {orText, base64Key, base64Key},
		"plain else, with a prefix": {orText, standard, decoded},
		"demo secret":               {hexed, "whsec_1" + signature.DemoSuffix, "whsec_1" + signature.DemoSuffix},
		"public key": {signature.Key{Form: signature.KeyBase64, Strip: []string{"whsec_"}},
			"whpk_" + base64.StdEncoding.EncodeToString(make([]byte, 32)), ""},
		"public key as it stands":  {orText, "whpk_" + base64.StdEncoding.EncodeToString(make([]byte, 32)), ""},
		"private key":              {signature.Key{}, "whsk_AAAA", ""},
		"PEM":                      {signature.Key{}, rsaKey(), ""},
		"public key as text":       {signature.Key{}, "whpk_" + base64.StdEncoding.EncodeToString(der[12:]), ""},
		"DER":                      {signature.Key{}, base64.StdEncoding.EncodeToString(der), ""},
		"DER in hexadecimal":       {signature.Key{}, hex.EncodeToString(der), ""},
		"DER in capitals":          {signature.Key{}, strings.ToUpper(hex.EncodeToString(der)), ""},
		"DER with a line end":      {signature.Key{}, hex.EncodeToString(der) + "\n", ""},
		"text of hexadecimal":      {signature.Key{}, strings.Repeat("30", 32), strings.Repeat("30", 32)},
		"public key in base64 DER": {signature.Key{}, sendgridKey, ""},
		"text that begins with M":  {signature.Key{}, "My dear Watson", "My dear Watson"},
		"base64 that begins with M": {base64d, "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
			"1\xf2\x90\xf6\xbf\x06)\x8a\xabO\x08\xd4<?\x08,\xf6H\xa3b\xda-\xa4\xb0"},
	}
	for name, test := range tests {
		got, err := test.key.KeyOf([]byte(test.secret))
		if string(got) != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), test.secret) {
			t.Errorf("%s: the error contains the secret: %v", name, err)
		}
	}
	standard := catalogue()["Standard Webhooks"] // if shared secrets are accepted, a public key signs nothing
	public := []byte("whpk_" + base64.StdEncoding.EncodeToString(der[12:]))
	err = standard.Sign(public, &signature.Request{}, time.Unix(signedAt, 0))
	if err == nil || standard.CheckSecret(public) == nil {
		t.Error("a public key is taken for a shared secret")
	}
}

// A public key is read in each form in which senders show it, and verifies signatures of its
// private key.
func TestVerify_publicKeyForms(t *testing.T) {
	t.Parallel()
	seed := bytes.Repeat([]byte{7}, 32)
	private := ed25519.NewKeyFromSeed(seed)
	public := private.Public().(ed25519.PublicKey)
	discord := catalogue()["Discord"]
	r := discord.delivery(jsonBody)
	r.ReceivedAt = time.Unix(signedAt, 0)
	must(t, discord.Sign([]byte("whsk_"+base64.StdEncoding.EncodeToString(private)), &r, r.ReceivedAt))
	spki := "302a300506032b6570032100" + hex.EncodeToString(public)
	der, _ := hex.DecodeString(spki)
	b64 := base64.StdEncoding.EncodeToString
	for name, secret := range map[string]string{
		"hexadecimal": hex.EncodeToString(public), "base64": b64(public), "whpk_": "whpk_" + b64(public),
		"DER": b64(der), "with a newline": hex.EncodeToString(public) + "\n",
		"PEM": "-----BEGIN PUBLIC KEY-----\n" + b64(der) + "\n-----END PUBLIC KEY-----\n", "private": "whsk_" +
			b64(seed),
	} {
		if err := discord.CheckSecret([]byte(secret)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := verify(t, &discord.Scheme, [][]byte{[]byte(secret)}, r, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := map[string]string{"empty": "", "short": hex.EncodeToString(public[1:]),
		"long": hex.EncodeToString(public) + "00", "RSA": rsaKey(), "no key": "hello",
		"shared secret": "whsec_" + b64(make([]byte, 27)),
		"empty PEM":     "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n", "whsk_": "whsk_AAAA"}
	for name, secret := range bad {
		if err := discord.CheckSecret([]byte(secret)); err == nil {
			t.Errorf("%s is a key", name)
		}
		if _, err := verify(t, &discord.Scheme, [][]byte{[]byte(secret)}, r, 0); problem(err) != signature.Wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
	discord.Key.RequirePrefix = true // if shared secrets are accepted too
	for secret, want := range map[string]bool{b64(public): false, hex.EncodeToString(public): false,
		"whpk_" + b64(public): true, "whsk_" + b64(seed): true, demoSecret: true,
		"-----BEGIN PUBLIC KEY-----\n" + b64(der) + "\n-----END PUBLIC KEY-----\n": true} {
		if err := discord.CheckSecret([]byte(secret)); (err == nil) != want {
			t.Errorf("prefixed: %s: %v", secret, err)
		}
	}
	for name, other := range map[string]string{"SendGrid": hex.EncodeToString(public), "Wise": b64(der)} {
		row := catalogue()[name]
		if err := row.CheckSecret([]byte(other)); err == nil {
			t.Errorf("%s takes an Ed25519 key", name)
		}
	}
}

// A public key cannot sign, and the error says so.
func TestSign_publicKey_fails(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Discord", "SendGrid", "Wise"} {
		row := catalogue()[name]
		for _, secret := range []string{"", strings.Repeat("00", 32), "hello"} {
			r := signature.Request{Header: http.Header{}}
			if err := row.Sign([]byte(secret), &r, time.Unix(signedAt, 0)); err == nil {
				t.Errorf("%s: %q signs", name, secret)
			}
		}
	}
	wise := catalogue()["Wise"]
	if err := wise.Sign([]byte(demoSecret), &signature.Request{}, time.Unix(signedAt, 0)); err == nil ||
		!strings.Contains(err.Error(), "demo") {
		t.Errorf("RSA with a demo secret: %v", err)
	}
}

func TestElements(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body, list, item string
		want             []string
	}{
		{`{"a":{"l":[ {"x":1} , {"x":"]"},{}, 7,[{"x":2}]] }}`, "a.l", "x", []string{`1`, `"]"`, "", "", ""}},
		{` {"l":[1,"two",{"l":[3]},[4] ]}`, "l", "", []string{`1`, `"two"`, `{"l":[3]}`, `[4]`}},
		{`{"l":[1],"l":[2,3]}`, "l", "", []string{"2", "3"}},
		{`{"l":[ ]}`, "l", "", []string{}},
		{`{"l":{}}`, "l", "", nil},
		{`{"m":[1]}`, "l", "", nil},
		{`{"l":[1}`, "l", "", nil},
		{``, "l", "", nil},
	} {
		elements, ok := signature.Elements([]byte(tc.body), tc.list, tc.item)
		if ok != (tc.want != nil) {
			t.Fatalf("%s: %v", tc.body, ok)
		}
		if !ok {
			continue
		}
		got := []string{}
		for each := range elements {
			got = append(got, string(each))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.body, got, tc.want)
		}
	}
}
