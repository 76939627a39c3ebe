// Package stripe reads Stripe's webhooks: snapshot events and thin events, of one account or of connected ones.
// What each type of object means for the version rule is one table, in types.go.
package stripe

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// scheme is how Stripe signs (https://docs.stripe.com/webhooks/signature). The key is the whole secret with its whsec_
// prefix. Items under other keys (v0 on test events) are made to look like proof and are none.
var scheme = signature.Scheme{
	Name:      "stripe-v1",
	Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Stripe-Signature")}, Separator: ",", Assign: "=", Item: "v1"},
	Timestamp: &signature.Clock{From: signature.MustRef("item:t")},
	Message:   signature.MustTemplate("{timestamp}.{body}"),
}

// Stripe is the provider.
type Stripe struct{}

var _ provider.Provider = Stripe{}

// Name is "stripe".
func (Stripe) Name() string { return "stripe" }

// signingSecret begins every signing secret of a webhook endpoint.
const signingSecret = "whsec_"

// Check wants at least one signing secret. Accounts are optional: without them events of any connected account are taken.
func (Stripe) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return err
	}
	for _, secret := range src.Secrets {
		if !bytes.HasPrefix(secret.Value, []byte(signingSecret)) {
			return fmt.Errorf("secrets: %s cannot be used: %s; copy the endpoint's signing secret, which begins with %s, "+
				"from Developers, Webhooks in the Dashboard", secret.Name, otherSecret(secret.Value), signingSecret)
		}
	}
	if src.Key != "" {
		return errors.New("key: Stripe events are always named by their id; leave it out")
	}
	return nil
}

// otherSecret says what a text is that is no signing secret, and shows nothing of it.
func otherSecret(text []byte) string {
	for _, prefix := range []string{"sk_", "rk_", "pk_"} {
		if bytes.HasPrefix(text, []byte(prefix)) {
			return "it is an API key (" + prefix + "...)"
		}
	}
	return "it is no signing secret of Stripe"
}

// Headers are the request headers kept with an event.
func (Stripe) Headers() []string { return []string{"Content-Type", "Stripe-Signature", "User-Agent"} }

// Verify proves the sender by the Stripe-Signature header.
func (Stripe) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return provider.Prove(src, d, &scheme)
}

// Sign makes a delivery as Stripe would send it at the given time, under the source's first secret.
func (Stripe) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return nil, err
	}
	d := &provider.Delivery{Header: make(map[string][]string), Body: s.Body, ReceivedAt: at}
	d.Header.Set("Accept", "*/*; q=0.5, application/xml")
	d.Header.Set("Cache-Control", "no-cache")
	d.Header.Set("Content-Type", "application/json; charset=utf-8")
	d.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	return d, provider.Seal(src, d, &scheme, at)
}
