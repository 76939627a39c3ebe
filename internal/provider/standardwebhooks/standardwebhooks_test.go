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
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: standardwebhooks.New(),
		Source: providertest.Source("standardwebhooks", "whsec_bmV3IHNlY3JldCBvZiBhIHRlc3Q=",
			"whsec_b2xkIHNlY3JldCBvZiBhIHRlc3Q="),
		Signature:  "Webhook-Signature",
		SignsTime:  true,
		BadSecrets: []string{"whsec_not base64!", "whpk_AAAA", "v1,whsec_*"},
	}
}

// signWith signs a delivery again with the named scheme.
func signWith(t *testing.T, src *provider.Source, d *provider.Delivery, scheme string) {
	t.Helper()
	for _, s := range standardwebhooks.New().Schemes() {
		if s.Name != scheme {
			continue
		}
		if err := provider.SignDelivery(src, d, s, d.ReceivedAt); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("there is no scheme %s", scheme)
}

// With a shared secret, with Svix's headers, and with a key pair.
func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ scheme, header, newSecret, oldSecret string }{
		{"standardwebhooks-v1", "Webhook", "", ""},
		{"svix-v1", "Svix", "", ""},
		{"standardwebhooks-v1a", "Webhook", "new_for_postern_dev", "old_for_postern_dev"},
	} {
		t.Run(c.scheme, func(t *testing.T) {
			t.Parallel()
			s := suite()
			s.Signature = c.header + "-Signature"
			if i > 0 {
				spec := standardwebhooks.New().Spec()
				spec.Schemes = spec.Schemes[i : i+1]
				spec.Events.Key = declared.Templates("{header:"+c.header+"-Id}", "{header:Webhook-Id}")
				s.Provider = declared.New(spec)
			}
			if c.newSecret != "" {
				s.Source = providertest.Source("standardwebhooks", c.newSecret, c.oldSecret)
			}
			// The id is signed, so a delivery without it is rejected. An invalid id counts as none.
			s.NoKey = func(t *testing.T, src *provider.Source, d *provider.Delivery) {
				t.Helper()
				d.Header.Set(c.header+"-Id", strings.Repeat("x", provider.MaxNameBytes+1))
				signWith(t, src, d, c.scheme)
			}
			providertest.Run(t, s)
		})
	}
}

func TestSamples_golden_areReadAsRecorded(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden")
}

// With objects as configured for Clerk or a similar sender.
func TestSamples_configuredObjects_endEqualInAnyOrder(t *testing.T) {
	t.Parallel()
	s := suite()
	spec := standardwebhooks.New().Spec()
	spec.Objects = []declared.Object{
		{Events: []string{"user.*"}, Type: declared.Templates("user"), ID: declared.Templates("{json:data.id}"),
			State: "data", Deletes: []string{"user.deleted"}},
		{Events: []string{"invoice.*"}, Type: declared.Templates("invoice"), ID: declared.Templates("{json:data.id}"),
			State: "data"},
	}
	s.Provider = declared.New(spec)
	providertest.AnyOrder(t, s)
	providertest.Golden(t, s, "testdata/objects.golden")
}

// Senders write times as texts or as numbers; a variant keeps the format.
func TestMakeVariant_timeFormats_areKept(t *testing.T) {
	t.Parallel()
	p := standardwebhooks.New()
	at := time.Date(2026, time.July, 4, 12, 30, 15, 0, time.UTC)
	for body, want := range map[string]string{
		`{"timestamp":1654012591514,"data":{"updated_at":1654012591835}}`: `{"data":{"updated_at":1783168215000},` +
			`"timestamp":1783168215000}`,
		`{"timestamp":1654012591}`:             `{"timestamp":1783168215}`,
		`{"timestamp":"2022-05-31T15:56:31Z"}`: `{"timestamp":"2026-07-04T12:30:15.000Z"}`,
	} {
		variant, err := p.MakeVariant(provider.Sample{Body: []byte(body)}, 1, at, false)
		if err != nil || string(variant.Body) != want {
			t.Errorf("variant of %s: %s, %v", body, variant.Body, err)
		}
		events, err := p.Identify(&provider.Source{}, &provider.Delivery{Header: http.Header{}, Body: variant.Body})
		if err != nil || !events[0].OccurredAt.Equal(at) {
			t.Errorf("identify %s: %+v, %v", variant.Body, events, err)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range standardwebhooks.New().Samples() {
		f.Add(s.Body, "msg_1", "")
	}
	f.Add([]byte(`{"type":"a","timestamp":1.5e12}`), "\x00", "msg_2")
	f.Fuzz(func(t *testing.T, body []byte, id, svix string) {
		d := &provider.Delivery{Header: http.Header{"Webhook-Id": {id}, "Svix-Id": {svix}}, Body: body}
		providertest.CheckSound(t, standardwebhooks.New(), &provider.Source{}, d)
	})
}

// The test vector of the libraries of Standard Webhooks and Svix.
const (
	vectorID   = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTime = 1614265330
	vectorBody = `{"test": 2432232314}`
	vector     = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	vectorKey  = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	// The same message signed with openssl: genpkey -algorithm ed25519, pkeyutl -sign -rawin.
	pairVector = "v1a,8E0SODOHcZS3+L8WsE6eTOD+21CtIMRRA0qn+hKPrk40+sjIPRN8unemgTqLQFpUmvh9STBIKchzLxUIJ3TkBA=="
	publicKey  = "whpk_IxflUcIOGPaTJ359oZO9YwOS3BxgalFzvV6LpQa1YYc="
	// Also with Python's HMAC, with the bytes of the text polar_whs_vector as key.
	rawVector = "v1,L+7VqOke5jW+LeUORoUiXXmFv81IX+B6JMhUPkqseak="
	rawSecret = "polar_whs_vector"
)

func delivery(family, signature string) *provider.Delivery {
	return &provider.Delivery{Body: []byte(vectorBody), ReceivedAt: time.Unix(vectorTime, 0).Add(time.Minute),
		Header: http.Header{family + "-Id": {vectorID}, family + "-Timestamp": {"1614265330"},
			family + "-Signature": {signature}}}
}

func source(secrets ...string) *provider.Source {
	src := &provider.Source{Name: "standardwebhooks"}
	for _, s := range secrets {
		src.Secrets = append(src.Secrets, provider.Secret{Name: s[:min(len(s), 8)], Value: []byte(s)})
	}
	return src
}

// reason returns why a delivery is rejected, or "".
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

func TestVerify_vectorsOfOtherPrograms_areAccepted(t *testing.T) {
	t.Parallel()
	other := strings.Replace(vector, "g0hM", "g0hN", 1)
	tests := map[string]struct {
		secrets   []string
		signature string
		want      provider.Reason
	}{
		"published":      {[]string{"whsec_" + vectorKey}, vector, ""},
		"without whsec_": {[]string{vectorKey}, vector, ""},
		"Supabase":       {[]string{"v1,whsec_" + vectorKey}, vector, ""},
		"raw text":       {[]string{rawSecret}, rawVector, ""},
		"key pair":       {[]string{publicKey}, pairVector, ""},
		"second secret":  {[]string{rawSecret, publicKey, "whsec_" + vectorKey}, vector, ""},
		"several signatures": {[]string{"whsec_" + vectorKey}, other + " " + pairVector + " v2,AAAA " + vector,
			""},
		"both kinds, the pair known": {[]string{publicKey}, other + " " + pairVector, ""},
		"another signature":          {[]string{"whsec_" + vectorKey}, other, provider.WrongSignature},
		"another pair's": {[]string{"whpk_" + strings.Repeat("A", 42) + "E="}, pairVector,
			provider.WrongSignature},
		"a pair's as shared": {[]string{"whsec_" + vectorKey}, strings.Replace(pairVector, "v1a", "v1", 1),
			provider.WrongSignature},
		"a shared one as a pair's": {[]string{publicKey}, strings.Replace(vector, "v1", "v1a", 1),
			provider.WrongSignature},
		"unknown version": {[]string{"whsec_" + vectorKey}, strings.Replace(vector, "v1", "v3", 1),
			provider.MalformedSignature},
		"no version": {[]string{"whsec_" + vectorKey}, vector[3:], provider.MalformedSignature},
	}
	for name, test := range tests {
		for _, family := range []string{"Webhook", "Svix"} {
			if got := reason(t, source(test.secrets...), delivery(family, test.signature)); got != test.want {
				t.Errorf("%s, %s headers: %q, want %q", name, family, got, test.want)
			}
		}
	}
}

// Anyone with a captured delivery can send it again, but not under another id: an id of the other
// family is not signed.
func TestVerify_secondID_isRejected(t *testing.T) {
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
			t.Errorf("a valid signature, with a wrong one of %s: %q", other, got)
		}
		events, err := standardwebhooks.New().Identify(src, d)
		if err != nil || len(events) != 1 || events[0].Key != vectorID {
			t.Errorf("identify: %+v, %v", events, err)
		}
	}
}

// Schemes are tried one after the other. A delivery with a right signature but a late time is
// rejected as late, not as forged.
func TestVerify_lateDelivery_isStale(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"whsec_": "whsec_" + vectorKey, "bare": vectorKey} {
		d := delivery("Webhook", "v1a,AAAA "+vector)
		d.ReceivedAt = d.ReceivedAt.Add(time.Hour)
		if got := reason(t, source(secret), d); got != provider.StaleTimestamp {
			t.Errorf("%s: %q, want stale", name, got)
		}
	}
}

// `postern send` signs with the method of the source's secret.
func TestSign_privateKey_usesEd25519(t *testing.T) {
	t.Parallel()
	p := standardwebhooks.New()
	// the seed of a key pair
	private := "whsk_" + base64.StdEncoding.EncodeToString([]byte("a seed of thirty-two bytes, all."))
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

// Everybody knows a public key, so it is not accepted as a shared secret in any format. Without its
// whpk_ it is rejected, so that such a source does not seem to work.
func TestVerify_publicKeyAsSharedSecret_isRejected(t *testing.T) {
	t.Parallel()
	bare := strings.TrimPrefix(publicKey, "whpk_")
	if got := reason(t, source(bare), delivery("Webhook", pairVector)); got != provider.WrongSignature {
		t.Errorf("with the bare key: %q", got)
	}
	keys := map[string][]byte{"text": []byte(publicKey), "bare": []byte(bare)}
	for _, text := range []string{bare, strings.ReplaceAll(publicKey, "_", "/")} {
		b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		if err != nil {
			t.Fatal(err)
		}
		keys["bytes of "+text] = b
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
