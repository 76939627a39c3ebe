package config

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/hmac"
)

// Secrets of the demo sources of `postern dev`. They are public, and refused everywhere else by how they end.
const (
	DemoStripeSecret  = "whsec_demo_stripe_secret_for_postern_dev"
	DemoShopifySecret = "demo_shopify_secret_for_postern_dev"
)

// DemoSources are the sources of `postern dev` where the configuration has none: one per provider, named like it.
func DemoSources() map[string]*Source {
	secrets := map[string]string{"stripe": DemoStripeSecret}
	out := map[string]*Source{}
	for _, p := range all.All() {
		name := p.Name()
		out[name] = demoSource(name, cmp.Or(secrets[name], "demo_"+name+"_secret"+demoMark))
	}
	return out
}

const demoURL = "https://postern.example/webhooks/"

// IsDemoURL tells whether an address is a demo source's, which no provider was ever given.
func IsDemoURL(address string) bool { return strings.HasPrefix(address, demoURL) }

// demoSource takes any account, and has an address for the providers that sign it.
func demoSource(provider, secret string) *Source {
	src := &Source{
		Provider: provider,
		Accounts: []string{"*"},
		URL:      demoURL + provider,
		Secrets:  []Secret{{Name: "demo", Value: Hidden(secret), secret: []byte(secret)}},
	}
	if provider == hmac.Name { // as its samples are signed and named
		src.Scheme = Scheme{Header: Words{"X-Signature"}, Prefix: "sha256="}
		src.Events = Events{Key: Words{"{json:id}"}, Type: Words{"{json:type}"}, Occurred: EventTime{From: "json:created_at"}}
		src.Objects = []Object{{Events: Words{"order.*"}, Type: Words{"order"}, ID: Words{"{json:data.id}"}, State: "data",
			Version: ObjectVersion{From: "json:data.version", Unit: "integer"}, Deletes: Words{"order.deleted"}, Final: true}}
	}
	if provider == api.Name {
		src.Objects = []Object{{Events: Words{"com.example.order.*"}, Type: Words{"order"}, State: "data", Version: ObjectVersion{From: "json:data.version", Unit: "integer"}, Deletes: Words{"com.example.order.deleted"}, Final: true}}
	}
	c := &Config{Sources: map[string]*Source{provider: src}}
	c.Complete()
	return src
}

// ReplacedSecret is the name of a secret that ReplaceSecret gave.
const ReplacedSecret = "file"

// ReplaceSecret gives a source the secret in a file instead of those it has; for trying a real provider against `postern dev`.
func (c *Config) ReplaceSecret(source, file string) error {
	src, ok := c.Sources[source]
	if !ok {
		return fmt.Errorf("there is no source %q; there are %s", source, strings.Join(sortedKeys(c.Sources), ", "))
	}
	value, err := c.files.read(file, readSecretFile)
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
