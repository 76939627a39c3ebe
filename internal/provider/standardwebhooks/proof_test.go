package standardwebhooks_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
)

// The vector that the libraries of Standard Webhooks and Svix test themselves with.
const (
	vectorID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTime = 1614265330
	vectorBody = `{"test": 2432232314}`
	vector     = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	vectorKey  = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	// Made of the same message with openssl: genpkey -algorithm ed25519, pkeyutl -sign -rawin.
	pairVector = "v1a,8E0SODOHcZS3+L8WsE6eTOD+21CtIMRRA0qn+hKPrk40+sjIPRN8unemgTqLQFpUmvh9STBIKchzLxUIJ3TkBA=="
	publicKey  = "whpk_IxflUcIOGPaTJ359oZO9YwOS3BxgalFzvV6LpQa1YYc="
	// And with the HMAC of Python, under the bytes of the text polar_whs_vector.
	rawVector = "v1,L+7VqOke5jW+LeUORoUiXXmFv81IX+B6JMhUPkqseak="
	rawSecret = "polar_whs_vector"
)

func delivery(family, signature string) *provider.Delivery {
	return &provider.Delivery{Body: []byte(vectorBody), ReceivedAt: time.Unix(vectorTime, 0).Add(time.Minute),
		Header: http.Header{family + "-Id": {vectorID}, family + "-Timestamp": {"1614265330"}, family + "-Signature": {signature}}}
}

func source(secrets ...string) *provider.Source {
	src := &provider.Source{Name: "standardwebhooks"}
	for _, s := range secrets {
		src.Secrets = append(src.Secrets, provider.Secret{Name: s[:min(len(s), 8)], Value: []byte(s)})
	}
	return src
}

// reason is why a delivery is refused, "" where it is not.
func reason(t *testing.T, src *provider.Source, d *provider.Delivery) provider.Reason {
	t.Helper()
	_, err := standardwebhooks.New().Verify(src, d)
	var rejection *provider.Rejection
	if err != nil && !errors.As(err, &rejection) {
		t.Fatalf("verify: %v, want a rejection", err)
	}
	if rejection == nil {
		return ""
	}
	return rejection.Reason
}

func TestVectors(t *testing.T) {
	t.Parallel()
	other := strings.Replace(vector, "g0hM", "g0hN", 1)
	tests := map[string]struct {
		secrets   []string
		signature string
		want      provider.Reason
	}{
		"published":                  {[]string{"whsec_" + vectorKey}, vector, ""},
		"without whsec_":             {[]string{vectorKey}, vector, ""},
		"Supabase":                   {[]string{"v1,whsec_" + vectorKey}, vector, ""},
		"raw text":                   {[]string{rawSecret}, rawVector, ""},
		"key pair":                   {[]string{publicKey}, pairVector, ""},
		"second secret":              {[]string{rawSecret, publicKey, "whsec_" + vectorKey}, vector, ""},
		"several signatures":         {[]string{"whsec_" + vectorKey}, other + " " + pairVector + " v2,AAAA " + vector, ""},
		"both kinds, the pair known": {[]string{publicKey}, other + " " + pairVector, ""},
		"another signature":          {[]string{"whsec_" + vectorKey}, other, provider.WrongSignature},
		"another pair's":             {[]string{"whpk_" + strings.Repeat("A", 42) + "E="}, pairVector, provider.WrongSignature},
		"a pair's as shared":         {[]string{"whsec_" + vectorKey}, strings.Replace(pairVector, "v1a", "v1", 1), provider.WrongSignature},
		"a shared one as a pair's":   {[]string{publicKey}, strings.Replace(vector, "v1", "v1a", 1), provider.WrongSignature},
		"unknown version":            {[]string{"whsec_" + vectorKey}, strings.Replace(vector, "v1", "v3", 1), provider.MalformedSignature},
		"no version":                 {[]string{"whsec_" + vectorKey}, vector[3:], provider.MalformedSignature},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, family := range []string{"Webhook", "Svix"} {
				if got := reason(t, source(test.secrets...), delivery(family, test.signature)); got != test.want {
					t.Errorf("%s headers: %q, want %q", family, got, test.want)
				}
			}
		})
	}
}

// A public key is known to everybody. However its text is turned, it is no shared secret.
func TestPublicKeyIsNoSharedSecret(t *testing.T) {
	t.Parallel()
	bare := strings.TrimPrefix(publicKey, "whpk_")
	keys := map[string][]byte{"text": []byte(publicKey), "bare": []byte(bare)}
	for _, text := range []string{bare, strings.ReplaceAll(publicKey, "_", "/")} {
		if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "=")); err == nil {
			keys["bytes of "+text] = b
		}
	}
	if len(keys) < 3 {
		t.Fatalf("only %d keys to try", len(keys))
	}
	for name, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(vectorID + ".1614265330." + vectorBody))
		forged := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, family := range []string{"Webhook", "Svix"} {
			if got := reason(t, source(publicKey), delivery(family, forged)); got != provider.WrongSignature {
				t.Errorf("signed by the %s: %q", name, got)
			}
		}
	}
}

// Whoever has seen a delivery can send it again, but not under a name of its own: the id of the other family is not signed.
func TestSignedIDCannotBeReplaced(t *testing.T) {
	t.Parallel()
	for family, other := range map[string]string{"Webhook": "Svix", "Svix": "Webhook"} {
		d := delivery(family, vector)
		src := source("whsec_" + vectorKey)
		d.Header.Set(other+"-Id", "msg_forged")
		if got := reason(t, src, d); got != provider.MalformedSignature {
			t.Errorf("%s-Id added: %q", other, got)
		}
		for _, name := range []string{"Timestamp", "Signature"} {
			d.Header.Set(other+"-"+name, d.Header.Get(family+"-"+name))
		}
		if got := reason(t, src, d); got != provider.MalformedSignature {
			t.Errorf("all of %s added: %q", other, got)
		}
		d.Header.Set(other+"-Id", vectorID)
		if got := reason(t, src, d); got != "" {
			t.Errorf("both families under one id: %q", got)
		}
		d.Header.Set(other+"-Signature", "v1,AAAA")
		if got := reason(t, src, d); got != "" {
			t.Errorf("the right signature beside a wrong one of %s: %q", other, got)
		}
		events, err := standardwebhooks.New().Identify(src, d)
		if err != nil || len(events) != 1 || events[0].Key != vectorID {
			t.Errorf("identify: %+v, %v", events, err)
		}
	}
}

// Schemes are tried one after the other; a delivery that one of them proves is told to be late, not to be forged.
func TestLateDeliveryIsToldSo(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"whsec_": "whsec_" + vectorKey, "bare": vectorKey} {
		d := delivery("Webhook", "v1a,AAAA "+vector)
		d.ReceivedAt = d.ReceivedAt.Add(time.Hour)
		if got := reason(t, source(secret), d); got != provider.StaleTimestamp {
			t.Errorf("%s: %q, want stale", name, got)
		}
	}
}

// `postern send` signs by the kind of secret that the source has.
func TestSignByPrivateKey(t *testing.T) {
	t.Parallel()
	p := standardwebhooks.New()
	private := "whsk_" + base64.StdEncoding.EncodeToString([]byte("a seed of thirty-two bytes, all.")) // the seed of a key pair
	d, err := p.Sign(source(private), p.Samples()[0], time.Unix(vectorTime, 0))
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Header.Get("Webhook-Signature"); !strings.HasPrefix(got, "v1a,") {
		t.Errorf("signature %q", got)
	}
	if got := reason(t, source(private), d); got != "" {
		t.Errorf("verify: %q", got)
	}
}

// A public key proves nothing without its whpk_: a source that were given it bare would take what everyone can sign as shared, and must
// not seem to work.
func TestBarePublicKeyTakesNothingOfItsPair(t *testing.T) {
	t.Parallel()
	if got := reason(t, source(strings.TrimPrefix(publicKey, "whpk_")), delivery("Webhook", pairVector)); got != provider.WrongSignature {
		t.Errorf("with the bare key: %q", got)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(publicKey, "whpk_"))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{string(raw), publicKey, strings.TrimPrefix(publicKey, "whpk_")} {
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(vectorID + ".1614265330." + vectorBody))
		forged := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		if got := reason(t, source(publicKey), delivery("Webhook", forged)); got != provider.WrongSignature {
			t.Errorf("forged with the public key: %q", got)
		}
	}
}
