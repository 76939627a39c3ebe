// Package stripe implements the provider Stripe: snapshot and id-only events, of one account or of
// connected accounts, and Stripe's API. The table in types.go says what each object type means for
// the version rule. The package makes no calls and stores nothing.
package stripe

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// scheme is Stripe's signature scheme (https://docs.stripe.com/webhooks/signature). The key is the
// whole secret with its whsec_ prefix. Items under other keys (v0 on test events) are not
// signatures.
var scheme = signature.Scheme{
	Name: "stripe-v1",
	Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:Stripe-Signature")}, Separator: ",",
		KeySeparator: "=", Item: "v1"},
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

// Check requires at least one signing secret. Accounts are optional: without them events of any
// connected account are accepted.
func (Stripe) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return err
	}
	for _, secret := range src.Secrets {
		if !bytes.HasPrefix(secret.Value, []byte(signingSecret)) {
			return fmt.Errorf("secrets: %s cannot be used: %s; copy the endpoint's signing secret, which begins with "+
				"%s, "+
				"from Developers, Webhooks in the Dashboard", secret.Name, describeSecret(secret.Value), signingSecret)
		}
	}
	if src.Key != "" {
		return errors.New("key: the key of a Stripe event is always its id; leave it out")
	}
	return nil
}

// describeSecret says what a text is that is not a signing secret, without showing it.
func describeSecret(text []byte) string {
	for _, prefix := range []string{"sk_", "rk_", "pk_"} {
		if bytes.HasPrefix(text, []byte(prefix)) {
			return "it is an API key (" + prefix + "...)"
		}
	}
	return "it is not a signing secret of Stripe"
}

// Headers returns the request headers that are stored with an event.
func (Stripe) Headers() []string { return []string{"Content-Type", "Stripe-Signature", "User-Agent"} }

// Verify verifies the sender by the Stripe-Signature header.
func (Stripe) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	return provider.VerifySchemes(src, d, &scheme)
}

// Sign makes a delivery as Stripe sends it at the given time, with the source's first secret.
func (Stripe) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return nil, err
	}
	d := &provider.Delivery{Header: make(map[string][]string), Body: s.Body, ReceivedAt: at}
	d.Header.Set("Accept", "*/*; q=0.5, application/xml")
	d.Header.Set("Cache-Control", "no-cache")
	d.Header.Set("Content-Type", "application/json; charset=utf-8")
	d.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	return d, provider.SignDelivery(src, d, &scheme, at)
}
