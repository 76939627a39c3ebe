package stripe_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// No body makes a panic, an event without key or type, or an observation of none of the three shapes.
func FuzzBodies(f *testing.F) {
	for _, s := range (stripe.Stripe{}).Samples() {
		f.Add(s.Body)
	}
	f.Add([]byte(`{"id":"evt_1","type":"x","created":1e3,"data":{"object":{"object":"discount","customer":"c","subscription":"s"},"previous_attributes":{}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &provider.Delivery{Body: body}
		providertest.Sound(t, stripe.Stripe{}, &provider.Source{}, d)
		providertest.Sound(t, stripe.Stripe{}, &provider.Source{Account: "acct_1", Accounts: []string{"*"}}, d)
	})
}
