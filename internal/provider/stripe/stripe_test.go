package stripe_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stripe/stripe-go/v84/webhook"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:       stripe.Stripe{},
		Source:         providertest.Source("stripe", "whsec_test_new", "whsec_test_old"),
		Signature:      "Stripe-Signature",
		SignsTime:      true,
		VariantsChange: true,
		NoKey:          providertest.SignAgain(stripe.Stripe{}, providertest.Without("id")),
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

func TestCheck_otherTextThanSigningSecret_saysWhatItIs(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string]string{
		"whsec_0123456789":       "",
		"sk_live_0123456789":     "it is an API key (sk_...)",
		"sk_test_0123456789":     "it is an API key (sk_...)",
		"rk_live_0123456789":     "it is an API key (rk_...)",
		"pk_live_0123456789":     "it is an API key (pk_...)",
		"we_0123456789":          "it is not a signing secret of Stripe",
		" whsec_0123456789":      "it is not a signing secret of Stripe",
		"WHSEC_0123456789":       "it is not a signing secret of Stripe",
		"'whsec_0123456789'":     "it is not a signing secret of Stripe",
		"0123456789012345678901": "it is not a signing secret of Stripe",
	} {
		src := &provider.Source{Secrets: []provider.Secret{{Name: "good", Value: []byte("whsec_other")},
			{Name: "live", Value: []byte(secret)}}}
		err := stripe.Stripe{}.Check(src)
		if want == "" && err != nil || want != "" &&
			(err == nil || !strings.Contains(err.Error(), "secrets: live cannot be used: "+want)) {
			t.Errorf("%s: %v, want %q", secret, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "0123456789") {
			t.Errorf("the error contains the secret: %v", err)
		}
	}
}

// SharedTypes are the types whose objects can have the same names in other accounts.
func TestSharedTypes_types_areSharedBetweenAccounts(t *testing.T) {
	t.Parallel()
	want := []string{"balance", "balance_settings", "climate.product", "coupon", "plan", "price", "product",
		"reporting.report_type", "tax.settings"}
	if diff := cmp.Diff(want, stripe.Stripe{}.SharedTypes()); diff != "" {
		t.Error(diff)
	}
}

// No body causes a panic, an event without key or type, or an observation without one of the three
// shapes.
func FuzzBodies(f *testing.F) {
	for _, s := range (stripe.Stripe{}).Samples() {
		f.Add(s.Body)
	}
	f.Add([]byte(`{"id":"evt_1","type":"x","created":1e3,` +
		`"data":{"object":{"object":"discount","customer":"c","subscription":"s"},"previous_attributes":{}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &provider.Delivery{Body: body}
		providertest.CheckSound(t, stripe.Stripe{}, &provider.Source{}, d)
		providertest.CheckSound(t, stripe.Stripe{}, &provider.Source{Account: "acct_1", Accounts: []string{"*"}}, d)
	})
}

const secret = "whsec_oracle"

func source(secrets ...string) *provider.Source {
	src := &provider.Source{}
	for _, s := range secrets {
		src.Secrets = append(src.Secrets, provider.Secret{Name: s, Value: []byte(s)})
	}
	return src
}

func delivery(body []byte, header string, at time.Time) *provider.Delivery {
	d := &provider.Delivery{Header: map[string][]string{}, Body: body, ReceivedAt: at}
	d.Header.Set("Stripe-Signature", header)
	return d
}

// A delivery signed by Stripe's SDK is accepted.
func TestVerify_deliverySignedBySDK_isAccepted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
		at := time.Unix(rapid.Int64Range(1, 4e9).Draw(t, "seconds"), 0)
		signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: secret,
			Timestamp: at})
		v, err := stripe.Stripe{}.Verify(source("whsec_other", secret), delivery(body, signed.Header, at))
		if err != nil || v.Secret != secret || !v.SignedAt.Equal(at) {
			t.Fatalf("%+v, %v", v, err)
		}
	})
}

// Stripe's SDK accepts a delivery signed by Sign. Both reject a changed header or body.
func TestSign_delivery_isAcceptedBySDK(t *testing.T) {
	t.Parallel()
	sample := stripe.Stripe{}.Samples()[0]
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(1, 4e9).Draw(t, "seconds"), 0)
		d, err := stripe.Stripe{}.Sign(source(secret), sample, at)
		testkit.Must(t, err)
		header := d.Header.Get("Stripe-Signature")
		if err := webhook.ValidatePayloadIgnoringTolerance(d.Body, header, secret); err != nil {
			t.Fatalf("the SDK rejects %s: %v", header, err)
		}
		text := []byte(header)
		if rapid.Bool().Draw(t, "body") {
			text = append([]byte{}, d.Body...)
		}
		text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= 1
		body := d.Body
		if len(text) == len(header) {
			header = string(text)
		} else {
			body = text
		}
		if webhook.ValidatePayloadIgnoringTolerance(body, header, secret) == nil {
			t.Fatalf("the SDK accepts a change: %s", header)
		}
		if v, err := (stripe.Stripe{}).Verify(source(secret), delivery(body, header, at)); err == nil {
			t.Fatalf("a change is accepted: %s, %+v", header, v)
		}
	})
}

// While a secret is replaced, one header has a signature of each secret.
func TestVerify_severalSignatures_oneMustMatch(t *testing.T) {
	t.Parallel()
	body, at := []byte(`{"id": "evt_1"}`), time.Unix(1_700_000_000, 0)
	header := "t=1700000000"
	for _, s := range []string{"whsec_old", "whsec_new"} {
		header += ",v1=" + webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: s,
			Timestamp: at}).Header[len("t=1700000000,v1="):]
	}
	for _, s := range []string{"whsec_old", "whsec_new"} {
		if _, err := (stripe.Stripe{}).Verify(source(s), delivery(body, header+",v0=fake", at)); err != nil {
			t.Errorf("under %s: %v", s, err)
		}
		if err := webhook.ValidatePayloadIgnoringTolerance(body, header, s); err != nil {
			t.Errorf("the SDK under %s: %v", s, err)
		}
	}
}
