package hubspot_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/hubspot"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: hubspot.New(),
		Source: &provider.Source{Name: "hubspot", URL: "https://hooks.example/webhooks/hubspot",
			Secrets: []provider.Secret{
				{Name: "new", Value: []byte("hubspot_new")}, {Name: "old", Value: []byte("hubspot_old")}}},
		Signature: "X-Hubspot-Signature-V3",
		SignsTime: true,
		Unit:      time.Millisecond,
		Types: map[string][]string{"company.propertyChange": {"company.propertyChange", "company.propertyChange",
			"deal.creation"}},
		NoKey: providertest.SignAgain(hubspot.New(), providertest.Body(
			`[{"subscriptionType": "contact.creation", "objectId": 123, "occurredAt": 1767225600123}]`)),
		Readable: []string{"an array"},
		Retries:  map[string]string{`"attemptNumber": 0`: `"attemptNumber": 3`},
		// printf 'POSThttps://hooks.example/webhooks/hubspot[]1767258000000' |
		// openssl dgst -sha256 -hmac hubspot_vector -binary | base64
		Vectors: []providertest.Vector{{Secret: "hubspot_vector", Body: `[]`, At: 1767258000,
			Headers: map[string]string{"X-Hubspot-Signature-V3": "jnqMo5RZaQ6jLwy8tuxAnLCwpNyi11+dwfLT8cL3HsQ=",
				"X-Hubspot-Request-Timestamp": "1767258000000"}}},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
