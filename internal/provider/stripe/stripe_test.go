package stripe_test

import (
	"encoding/json"
	"flag"
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
