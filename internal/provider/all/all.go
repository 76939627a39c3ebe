// Package all lists all providers. A new provider must be added here, and nowhere else outside of
// its own folder.
package all

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/calendly"
	"github.com/postern-gateway/postern/internal/provider/discord"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/gitlab"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/provider/hubspot"
	"github.com/postern-gateway/postern/internal/provider/intercom"
	"github.com/postern-gateway/postern/internal/provider/linear"
	"github.com/postern-gateway/postern/internal/provider/mailgun"
	"github.com/postern-gateway/postern/internal/provider/paddle"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/slack"
	"github.com/postern-gateway/postern/internal/provider/square"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/provider/twilio"
	"github.com/postern-gateway/postern/internal/provider/typeform"
	"github.com/postern-gateway/postern/internal/provider/zoom"
)

// All returns the providers, sorted by name.
func All() []provider.Provider {
	return []provider.Provider{
		adyen.New(),
		api.New(),
		calendly.New(),
		discord.New(),
		github.GitHub{},
		gitlab.New(),
		hmac.New(),
		hubspot.New(),
		intercom.New(),
		linear.New(),
		mailgun.New(),
		paddle.New(),
		shopify.Shopify{},
		slack.New(),
		square.New(),
		standardwebhooks.New(),
		stripe.Stripe{},
		twilio.New(),
		typeform.New(),
		zoom.New(),
	}
}

// Named returns the provider with this name in the configuration.
func Named(name string) (provider.Provider, bool) {
	for _, p := range All() {
		if p.Name() == name {
			return p, true
		}
	}
	return nil, false
}
