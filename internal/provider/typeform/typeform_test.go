package typeform_test

import (
	"bytes"
	"flag"
	"net/http"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/typeform"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: typeform.New(),
		Source: &provider.Source{Name: "typeform", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("typeform_new")}, {Name: "old", Value: []byte("typeform_old")}}},
		Signature: "Typeform-Signature",
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			again, err := typeform.New().Sign(src, provider.Sample{Body: bytes.Replace(d.Body, []byte("event_id"), []byte("other_id"), 1)}, d.ReceivedAt)
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

// The signature was made with: printf '{"event_type":"form_response"}' | openssl dgst -sha256 -hmac typeform_vector -binary | base64
func TestVector(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("typeform_vector")}}}
	d := &provider.Delivery{Body: []byte(`{"event_type":"form_response"}`), Header: http.Header{"Typeform-Signature": {"sha256=CDGJvoX8QkzWBtn6ymULcP7n0t+2zzy0xFj/Ei4JU3k="}}}
	if _, err := typeform.New().Verify(src, d); err != nil {
		t.Error(err)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range typeform.New().Samples() {
		f.Add(s.Body)
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
