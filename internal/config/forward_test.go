package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

const aForward = `
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
  orders: {provider: api, secrets: [{name: a, value: token-of-the-tests-0123456789}]}
forward:
  app:
    to: https://app.example.com/postern
    types: [shop/subscription, shop/checkout.session, "orders/*"]
    secret: {value: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}
`

func TestForward_expanded_isRuleAndSignedDestination(t *testing.T) {
	t.Parallel()
	c := parse(t, strings.Replace(aForward, "types: [", "rate: 5\n    types: [", 1))
	all := c.Rules()
	if len(all) != 1 || all[0].Name != "forward-app" || all[0].On != rules.OnRevision || !all[0].Supersede {
		t.Fatalf("rules %+v", all)
	}
	for object, want := range map[rules.Selector]bool{{Source: "shop", Type: "subscription"}: true,
		{Source: "shop", Type: "checkout.session"}: true, {Source: "shop", Type: "invoice"}: false,
		{Source: "orders", Type: "anything"}: true, {Source: "orders", Type: "a/b"}: true} {
		if got := all[0].IsForwarded(object.Source, object.Type); got != want {
			t.Errorf("%+v is forwarded: %v, want %v", object, got, want)
		}
	}
	step := &all[0].Steps[0]
	if step.Destination != "forward-app" || !step.Do.Forward || step.Do.KeyHeader != "Idempotency-Key" {
		t.Errorf("step %+v", step)
	}
	to := c.ResolveDestinations()
	if len(to) != 1 || to[0].Name != "forward-app" || to[0].URL != "https://app.example.com/postern" ||
		string(to[0].SigningKey) != "01234567890123456789012345678901" || to[0].Rate != 5 || to[0].AllowedOnly {
		t.Errorf("destinations %+v", to)
	}
	if rule, err := c.Rule("forward-app"); rule != nil || err != nil { // it has no condition to test
		t.Errorf("backtest of %v, %v", rule, err)
	}
	if strings.Contains(c.String(), "MDEyMzQ1") {
		t.Error("the secret is printed")
	}
}

func TestForward_star_selectsAllSources(t *testing.T) {
	t.Parallel()
	c := parse(t, strings.Replace(aForward, `shop/subscription, shop/checkout.session, "orders/*"`, `"*"`, 1))
	want := []rules.Selector{{Source: "orders", Type: "*"}, {Source: "shop", Type: "*"}}
	if diff := cmp.Diff(want, c.Rules()[0].Forwards); diff != "" {
		t.Error(diff)
	}
}

func TestForward_mistakes_areReportedWithTheirLine(t *testing.T) {
	t.Parallel()
	const to, secret = "to: https://app.example.com/postern",
		"value: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	const rule = `effects: {forward-app: {source: shop, type: x, key: "{{ event.id }}", steps: []}}`
	const list = `types: [shop/subscription, shop/checkout.session, "orders/*"]`
	checkMistakes(t, aForward, map[string]struct{ old, new, want string }{
		"no address":      {to, "rate: 1", "line 7: forward.app.to: is not set: write the address of the receiver"},
		"no url":          {to, "to: app.example.com", `line 8: forward.app.to: "app.example.com" is not an address`},
		"query":           {to, to + "?a=b", "line 8: forward.app.to: has a user, a query or a # part"},
		"plain http":      {to, "to: http://a.example.com", `line 8: forward.app.to: "http://a.example.com" is plain http`},
		"private address": {to, "to: https://10.1.2.3/x", "line 8: forward.app.to: 10.1.2.3 is an address of a private"},
		"loopback":        {to, "to: http://localhost:80", "write allow: [127.0.0.1]"},
		"other allowed":   {to, "allow: [10.0.0.0/8]\n    to: http://localhost:80", "write allow: [127.0.0.1]"},
		"bad allow":       {to, to + "\n    allow: [app]", "line 9: forward.app.allow.0:"},
		"unknown source": {"shop/sub", "shpo/sub",
			`line 9: forward.app.types.0: source "shpo" is not configured; did you mean shop?`},
		"misspelt type": {"shop/subscription", "shop/subscriptions", "did you mean shop/subscription?"},
		"no slash": {"shop/subscription", "subscription",
			`line 9: forward.app.types.0: "subscription" is not SOURCE/TYPE`},
		"no types":          {list, "rate: 1", "forward.app.types: is not set"},
		"no secret":         {"secret: {" + secret + "}", "rate: 1", "forward.app.secret: is not set, so that"},
		"bad secret":        {secret, "value: hunter2", "line 10: forward.app.secret: is not a Standard Webhooks"},
		"unset variable":    {secret, "env: NOTHING", "line 10: forward.app.secret: "},
		"unknown setting":   {to, to + "\n    source: shop", "line 9: forward.app.source: "},
		"same name twice":   {"forward:\n", "forward:\n  app: {}\n", `"app"`},
		"name with a dot":   {"  app:\n", "  app.x:\n", "use a to z, 0 to 9, - and _"},
		"shared variables":  {"forward:\n", "forward:\n  a-b: {}\n  a_b: {}\n", "shares its variables"},
		"name of a rule":    {"forward:\n", rule + "\nforward:\n", "rename one of them"},
		"destination named": {"forward:\n", "destinations: {forward-app: {url: https://x.example}}\nforward:\n", "rename one"},
	})
}

// A type that the provider does not have may be new, so it only causes a warning.
func TestForward_newType_isAWarning(t *testing.T) {
	t.Parallel()
	text := strings.Replace(aForward, "shop/subscription", "shop/hovercraft", 1)
	const want = "line 9: forward.app.types.0: source shop has no"
	checkWarning(t, "a new type", text, "hovercraft", want)
	checkWarning(t, "a known type", aForward, "forward", "")
}

func TestForward_localReceiver_callsOnlyAllowedAddresses(t *testing.T) {
	t.Parallel()
	c := parse(t, strings.Replace(aForward, "to: https://app.example.com/postern",
		"to: http://127.0.0.1:9090/in\n    allow: [127.0.0.1]", 1))
	if to := c.ResolveDestinations()[0]; !to.AllowedOnly || len(to.Allow) != 1 {
		t.Errorf("%+v", to)
	}
}
