package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/settings"
)

// Secrets of the demo sources of `postern dev`. They are public. Their suffix makes every other
// command reject them.
const (
	DemoStripeSecret  = "whsec_demo_stripe_secret_for_postern_dev"
	DemoShopifySecret = "demo_shopify_secret_for_postern_dev"
)

// DemoSources returns the sources of `postern dev` where the configuration has none: one per
// provider, with its name.
func DemoSources() map[string]*Source {
	secrets := map[string]string{"stripe": DemoStripeSecret}
	out := map[string]*Source{}
	for _, p := range all.All() {
		name := p.Name()
		out[name] = demoSource(name, cmp.Or(secrets[name], "demo_"+name+"_secret"+demoSuffix))
	}
	return out
}

const demoURL = "https://postern.example/webhooks/"

// IsDemoURL reports whether an address belongs to a demo source. No provider was given such an
// address.
func IsDemoURL(address string) bool { return strings.HasPrefix(address, demoURL) }

// demoSource accepts any account, and has an address for the providers that sign it.
func demoSource(provider, secret string) *Source {
	src := &Source{
		Provider: provider,
		Accounts: []string{"*"},
		URL:      demoURL + provider,
		Secrets:  []Secret{{Name: "demo", Value: settings.MaskedString(secret), secret: []byte(secret)}},
	}
	switch provider { // the form in which the provider's samples are signed and named
	case hmac.Name:
		spec := hmac.New().Spec()
		src.Scheme, src.Events, src.Objects = spec.Schemes[0], spec.Events, spec.Objects
	case api.Name:
		src.Objects = api.New().Spec().Objects
	}
	c := &Config{Sources: map[string]*Source{provider: src}}
	c.Complete()
	return src
}

// ReplacedSecret is the name of a secret that ReplaceSecret set.
const ReplacedSecret = "file"

// ReplaceSecret replaces a source's secrets by the one in a file. It is for trying a real provider
// with `postern dev`.
func (c *Config) ReplaceSecret(source, file string) error {
	src, ok := c.Sources[source]
	if !ok {
		return fmt.Errorf("source %q does not exist; the sources are %s", source,
			strings.Join(sortedKeys(c.Sources), ", "))
	}
	value, err := c.fileTracker.read(file, readSecretFile)
	if err != nil {
		return fmt.Errorf("read secret of source %s: %w", source, err)
	}
	src.Secrets = []Secret{{Name: ReplacedSecret, File: file, secret: value}}
	p, err := src.provider(source)
	if err != nil {
		return err
	}
	return src.checkSecrets(source, p)
}
