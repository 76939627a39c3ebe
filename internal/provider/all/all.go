// Package all lists the providers. It is the one place outside its own folder that a new provider touches.
package all

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// All are the providers, sorted by name.
func All() []provider.Provider {
	return []provider.Provider{shopify.Shopify{}, stripe.Stripe{}}
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
