// Package all lists the providers. It is the one place outside its own folder that a new provider touches.
package all

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
	"github.com/postern-gateway/postern/internal/provider/calendly"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/provider/hubspot"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/provider/typeform"
)

// All are the providers, sorted by name.
func All() []provider.Provider {
	return []provider.Provider{
		adyen.New(),
		calendly.New(),
		github.GitHub{},
		hmac.New(),
		hubspot.New(),
		shopify.Shopify{},
		stripe.Stripe{},
		typeform.New(),
	}
}

// Named finds a provider by the word used in configuration.
func Named(name string) (provider.Provider, bool) {
	for _, p := range All() {
		if p.Name() == name {
			return p, true
		}
	}
	return nil, false
}
