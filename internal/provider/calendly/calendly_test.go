package calendly_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/provider/calendly"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:    calendly.New(),
		Source:      providertest.Source("calendly", "calendly_new", "calendly_old"),
		Signature:   "Calendly-Webhook-Signature",
		SignsTime:   true,
		ContentKeys: []string{"*"},
		// printf '1767258000.{"event":"invitee.created"}' | openssl dgst -sha256 -hmac
		// calendly_vector
		Vectors: []providertest.Vector{{Secret: "calendly_vector", Body: `{"event":"invitee.created"}`, At: 1767258000,
			Headers: map[string]string{"Calendly-Webhook-Signature": "t=1767258000," +
				"v1=05223ed325a0eeeb171869ff747a711a341315081afb142fdf5057a512a46a96"}}},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
