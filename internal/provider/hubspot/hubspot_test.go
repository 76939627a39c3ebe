package hubspot_test

import (
	"bytes"
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/hubspot"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: hubspot.New(),
		Source: &provider.Source{Name: "hubspot", URL: "https://hooks.example/webhooks/hubspot", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("hubspot_new")}, {Name: "old", Value: []byte("hubspot_old")}}},
		Signature: "X-Hubspot-Signature-V3",
		Dated:     true,
		Unit:      time.Millisecond,
		Types:     map[string][]string{"company.propertyChange": {"company.propertyChange", "company.propertyChange", "deal.creation"}},
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			again, err := hubspot.New().Sign(src, provider.Sample{Body: []byte(`[{"subscriptionType": "contact.creation", "objectId": 123, "occurredAt": 1767225600123}]`)}, d.ReceivedAt)
			if err != nil {
				t.Fatal(err)
			}
			*d = provider.Delivery{Header: again.Header, Body: again.Body, ReceivedAt: d.ReceivedAt}
		},
		Readable: []string{"an array"},
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

// The signature was made with: printf 'POSThttps://hooks.example/webhooks/hubspot[]1767258000000' | openssl dgst -sha256 -hmac hubspot_vector -binary | base64
func TestVector(t *testing.T) {
	t.Parallel()
	src := &provider.Source{URL: "https://hooks.example/webhooks/hubspot", Secrets: []provider.Secret{{Name: "vector", Value: []byte("hubspot_vector")}}}
	d := &provider.Delivery{Body: []byte(`[]`), ReceivedAt: time.Unix(1767258000, 0),
		Header: http.Header{"X-Hubspot-Signature-V3": {"jnqMo5RZaQ6jLwy8tuxAnLCwpNyi11+dwfLT8cL3HsQ="}, "X-Hubspot-Request-Timestamp": {"1767258000000"}}}
	if _, err := hubspot.New().Verify(src, d); err != nil {
		t.Error(err)
	}
	d.Query = "added=later"
	if _, err := hubspot.New().Verify(src, d); err == nil {
		t.Error("a query that was not signed passes")
	}
}

// A retry differs by its number alone, and is the same event.
func TestRetryIsTheSameEvent(t *testing.T) {
	t.Parallel()
	s := suite()
	sample := s.Provider.Samples()[0]
	first := s.Deliver(t, s.Source, sample)
	retried := *first
	retried.Body = bytes.Replace(first.Body, []byte(`"attemptNumber": 0`), []byte(`"attemptNumber": 3`), 1)
	if bytes.Equal(retried.Body, first.Body) {
		t.Fatal("the sample has no number of attempts")
	}
	a, _, _ := s.Observed(t, first)
	b, _, _ := s.Observed(t, &retried)
	if a.Key != b.Key || a.Fingerprint != b.Fingerprint {
		t.Errorf("%+v and its retry %+v", a, b)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range hubspot.New().Samples() {
		f.Add(s.Body)
	}
	s := suite()
	f.Fuzz(func(t *testing.T, body []byte) {
		providertest.Sound(t, s.Provider, s.Source, &provider.Delivery{Header: http.Header{}, Body: body})
	})
}
