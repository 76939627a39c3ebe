package calendly_test

import (
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/calendly"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: calendly.New(),
		Source: &provider.Source{Name: "calendly", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("calendly_new")}, {Name: "old", Value: []byte("calendly_old")}}},
		Signature:   "Calendly-Webhook-Signature",
		Dated:       true,
		ContentKeys: []string{"*"},
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

// The signature was made with: printf '1767258000.{"event":"invitee.created"}' | openssl dgst -sha256 -hmac calendly_vector
func TestVector(t *testing.T) {
	t.Parallel()
	src := &provider.Source{Secrets: []provider.Secret{{Name: "vector", Value: []byte("calendly_vector")}}}
	d := &provider.Delivery{Body: []byte(`{"event":"invitee.created"}`), ReceivedAt: time.Unix(1767258000, 0),
		Header: http.Header{"Calendly-Webhook-Signature": {"t=1767258000,v1=05223ed325a0eeeb171869ff747a711a341315081afb142fdf5057a512a46a96"}}}
	if _, err := calendly.New().Verify(src, d); err != nil {
		t.Error(err)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range calendly.New().Samples() {
		f.Add(s.Body)
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
