package stripe_test

import (
	"encoding/json"
	"flag"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: stripe.Stripe{},
		Source: &provider.Source{Name: "stripe", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("whsec_test_new")}, {Name: "old", Value: []byte("whsec_test_old")}}},
		Signature: "Stripe-Signature",
		Dated:     true,
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			t.Helper()
			body, err := provider.Edit(d.Body, "", func(root map[string]any) { root["id"] = json.Number("7") })
			if err != nil {
				t.Fatal(err)
			}
			again, err := stripe.Stripe{}.Sign(src, provider.Sample{Body: body}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			d.Header, d.Body = again.Header, again.Body
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}

func TestCheck_otherTextThanSigningSecret_saysWhatItIs(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string]string{
		"whsec_0123456789":       "",
		"sk_live_0123456789":     "it is an API key (sk_...)",
		"sk_test_0123456789":     "it is an API key (sk_...)",
		"rk_live_0123456789":     "it is an API key (rk_...)",
		"pk_live_0123456789":     "it is an API key (pk_...)",
		"we_0123456789":          "it is no signing secret of Stripe",
		" whsec_0123456789":      "it is no signing secret of Stripe",
		"WHSEC_0123456789":       "it is no signing secret of Stripe",
		"'whsec_0123456789'":     "it is no signing secret of Stripe",
		"0123456789012345678901": "it is no signing secret of Stripe",
	} {
		src := &provider.Source{Secrets: []provider.Secret{{Name: "good", Value: []byte("whsec_other")}, {Name: "live", Value: []byte(secret)}}}
		err := stripe.Stripe{}.Check(src)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "secrets: live cannot be used: "+want)) {
			t.Errorf("%s: %v, want %q", secret, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "0123456789") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}
