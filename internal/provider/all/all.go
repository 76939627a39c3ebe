// Package all lists all providers. A new provider must be added here, and nowhere else outside of
// its own folder.
package all

import (
	"maps"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/calendly"
	"github.com/postern-gateway/postern/internal/provider/declared"
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

// constructors are the providers by their names in the configuration. A described provider reads
// its files at the first call only.
var constructors = map[string]func() provider.Provider{
	"adyen":            declare(adyen.New),
	"api":              func() provider.Provider { return api.New() },
	"calendly":         declare(calendly.New),
	"discord":          declare(discord.New),
	"github":           func() provider.Provider { return github.GitHub{} },
	"gitlab":           declare(gitlab.New),
	"hmac":             declare(hmac.New),
	"hubspot":          declare(hubspot.New),
	"intercom":         declare(intercom.New),
	"linear":           declare(linear.New),
	"mailgun":          declare(mailgun.New),
	"paddle":           declare(paddle.New),
	"shopify":          func() provider.Provider { return shopify.Shopify{} },
	"slack":            declare(slack.New),
	"square":           declare(square.New),
	"standardwebhooks": declare(standardwebhooks.New),
	"stripe":           func() provider.Provider { return stripe.Stripe{} },
	"twilio":           declare(twilio.New),
	"typeform":         declare(typeform.New),
	"zoom":             declare(zoom.New),
}

func declare(described func() *declared.Provider) func() provider.Provider {
	return func() provider.Provider { return described() }
}

// All returns the providers, sorted by name.
func All() []provider.Provider {
	var out []provider.Provider
	for _, name := range slices.Sorted(maps.Keys(constructors)) {
		out = append(out, constructors[name]())
	}
	return out
}

// Named returns the provider with this name in the configuration.
func Named(name string) (provider.Provider, bool) {
	construct, ok := constructors[name]
	if !ok {
		return nil, false
	}
	return construct(), true
}
