package shopify_test

import (
	"flag"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
)

var update = flag.Bool("update", false, "write the golden files")

const shop = "postern-demo.myshopify.com"

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: shopify.Shopify{},
		Source: &provider.Source{Name: "shopify", Account: shop, Secrets: []provider.Secret{
			{Name: "new", Value: []byte("shpss_test_new")}, {Name: "old", Value: []byte("shpss_test_old")}}},
		Signature: "X-Shopify-Hmac-Sha256",
		NoKey: func(_ *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Header.Del("X-Shopify-Webhook-Id")
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
