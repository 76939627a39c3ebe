package config_test

import (
	"strings"
	"testing"
)

// A rule about objects of a type that its source is not known to have is told, with its line and the name that was meant; where nobody can say, nothing is.
func TestRulesAboutUnknownTypesAreTold(t *testing.T) {
	t.Parallel()
	const (
		stripe    = "provider: stripe, secrets: [{name: a, value: whsec_dGVzdA}]"
		shopify   = "provider: shopify, secrets: [{name: a, value: abcdefabcdef}], accounts: ['*']"
		described = "provider: hmac, secrets: [{name: a, value: abcdefabcdefabcdef}], scheme: {header: X-S}, events: {type: '{json:type}'}, objects: [{type: parcel, id: '{json:id}', events: [p.*]}, {type: '%', id: '{json:id}'}]"
	)
	for name, c := range map[string]struct{ source, about, want string }{
		"known":          {stripe, "invoice", ""},
		"misspelt":       {stripe, "invoise", `line 12: effects.receipt.type: source shop is not known to have objects of type "invoise", so that the rule may never fire; did you mean invoice?`},
		"unlike any":     {stripe, "spaceship", "postern objects list --source shop"},
		"another's":      {shopify, "Order", "did you mean order?"},
		"described":      {strings.Replace(described, "%", "label", 1), "parcell", "did you mean parcel?"},
		"described, all": {strings.Replace(described, "%", "label", 1), "label", ""},
		"told by events": {strings.Replace(described, "%", "{json:kind}", 1), "parcell", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := parseEffects(strings.Replace(strings.Replace(anEffect, stripe, c.source, 1), "type: invoice", "type: "+c.about, 1))
			if err != nil {
				t.Fatal(err)
			}
			told := ""
			for _, w := range cfg.EffectWarnings() {
				if strings.Contains(w, "is not known to have") {
					told = w
				}
			}
			if c.want == "" && told != "" || !strings.Contains(told, c.want) {
				t.Errorf("%q, want %q", told, c.want)
			}
		})
	}
}
