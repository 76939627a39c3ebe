package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/settings"
)

// Forward sends the changes of objects to an HTTP address. It is short for a destination, a rule
// and a step, which have the name forward-NAME in the ledger of effects, in metrics and in alerts.
type Forward struct {
	// To is the address to which Postern sends each change with POST. Plain http is allowed only to
	// addresses that allow lists.
	To settings.URL `yaml:"to"`
	// Types are the object types whose changes are sent, as SOURCE/TYPE, e.g. stripe/subscription.
	// stripe/* is all types of a source, and "*" all types of all sources.
	Types []string `yaml:"types"`
	// Secret signs each message as Standard Webhooks defines it (webhook-id, webhook-timestamp,
	// webhook-signature), so that the receiver can verify the sender. It consists of whsec_ and 24
	// to 64 random bytes as base64, e.g. the output of `echo whsec_$(openssl rand -base64 32)`.
	Secret APIKey `yaml:"secret"`
	// Allow are private, loopback or link-local addresses or networks that may be called, e.g.
	// 127.0.0.1 or 10.0.0.0/8. All other such addresses are blocked, whatever host name resolves to
	// them.
	Allow []string `yaml:"allow,omitempty" validate:"dive,network"`
	// Concurrency is the maximum number of simultaneous calls of one process. The changes of one
	// object are always sent one after the other.
	Concurrency int `yaml:"concurrency,omitempty" default:"8" validate:"gte=1,lte=1000"`
	// Rate is the maximum number of calls per second of one process. Leave it unset for no limit.
	Rate int `yaml:"rate,omitempty" unset:"no limit" validate:"omitempty,gte=1,lte=100000"`
}

// forwardPrefix begins the names of the rules and destinations of forwards.
const forwardPrefix = "forward-"

// forwardStep is the name of the only step of such a rule.
const forwardStep = "send"

// forwardRetry retries without an operator for three days. A receiver can then be down for a
// weekend. Any 4xx status may be a mistake of the receiver that its owner corrects.
func forwardRetry() rules.Retry {
	r := rules.Retry{FirstWait: time.Second, Factor: 2, MaxWait: 2 * time.Minute, MaxAge: 72 * time.Hour,
		MaxAttempts: 1_000_000}
	for status := 400; status < 500; status++ {
		r.OnStatuses = append(r.OnStatuses, status)
	}
	return r
}

// forwardKeyRetention is practically without limit, because a receiver that compares revisions may
// get a change at any time again.
const forwardKeyRetention = 10 * 365 * 24 * time.Hour

// destination returns the destination of a forward.
func (f *Forward) destination() *Destination {
	d := &Destination{URL: f.To, SigningSecret: f.Secret, Allow: f.Allow, Concurrency: f.Concurrency, Rate: f.Rate,
		KeyRetention: forwardKeyRetention}
	d.completeTimeout()
	fillDefaults(reflect.ValueOf(d).Elem())
	return d
}

// rule returns the rule of a forward.
func (f *Forward) rule(name string, c *Config) *rules.Rule {
	d := f.destination()
	path, _ := rules.CompileText("", rules.Scope{})
	return &rules.Rule{Name: forwardPrefix + name, On: rules.OnRevision, Forwards: f.selectors(c), Version: 1,
		Approval: rules.ApproveNone, Supersede: true, Steps: []rules.Step{{Name: forwardStep,
			Destination: forwardPrefix + name, Timeout: d.Timeout, Retry: forwardRetry(),
			Do: rules.Request{Method: http.MethodPost, Path: path, Headers: map[string]*rules.Text{}, Forward: true,
				KeyHeader: d.IdempotencyHeader}}}}
}

// selectors returns the sources and types that are forwarded.
func (f *Forward) selectors(c *Config) (all []rules.Selector) {
	for _, text := range f.Types {
		if text == "*" {
			for _, source := range sortedKeys(c.Sources) {
				all = append(all, rules.Selector{Source: source, Type: "*"})
			}
			continue
		}
		source, objectType, _ := strings.Cut(text, "/")
		all = append(all, rules.Selector{Source: source, Type: objectType})
	}
	return all
}

// checkForwards returns all problems of forwards.
func checkForwards(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Forward) {
		f, check := c.Forward[name], settings.Check("forward."+name)
		if c.Destinations[forwardPrefix+name] != nil || c.Effects[forwardPrefix+name] != nil {
			check.Fail("", "a destination or an effect is named %s%s too: rename one of them", forwardPrefix, name)
		}
		bad = append(bad, f.checkAddress("forward."+name+".to"))
		f.checkTypes(check, c)
		if f.Secret.isUnset() {
			check.Fail("secret", "is not set, so that the receiver could not verify the sender: create one with `echo "+
				"whsec_$(openssl rand -base64 32)`, and write e.g. secret: {env: FORWARD_SECRET}")
		}
		bad = append(bad, check.Err())
	}
	return errors.Join(bad...)
}

// checkAddress requires an address that may be called.
func (f *Forward) checkAddress(path string) error {
	if f.To == "" {
		return &settings.Problem{Path: path, Msg: "is not set: write the address of the receiver, e.g. " +
			"https://app.example.com/postern"}
	}
	if err := (&Destination{URL: f.To}).checkURL(path); err != nil {
		return err
	}
	u, _ := url.Parse(string(f.To)) // checkURL has parsed it
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	address, err := netip.ParseAddr(host)
	allowed := func(p netip.Prefix) bool { return p.Contains(address.Unmap()) }
	switch {
	case err == nil && (address.IsLoopback() || address.IsPrivate() || address.IsLinkLocalUnicast()) &&
		!slices.ContainsFunc(networks(f.Allow), allowed):
		return &settings.Problem{Path: path, Msg: fmt.Sprintf("%s is an address of a private network, which Postern "+
			"calls only if it is listed: write allow: [%s]", host, host)}
	case u.Scheme == "http" && len(f.Allow) == 0:
		return &settings.Problem{Path: path, Msg: fmt.Sprintf("%q is plain http, so everyone on the network path can "+
			"read the changes: write https, or list the addresses of the receiver, e.g. allow: [10.0.0.0/8]",
			settings.MaskURL(string(f.To)))}
	}
	return nil
}

// checkTypes requires types of configured sources.
func (f *Forward) checkTypes(check settings.Checker, c *Config) {
	if len(f.Types) == 0 {
		check.Fail("types", "is not set: list what to send as SOURCE/TYPE, e.g. [stripe/subscription], or [\"*\"] for "+
			"everything")
	}
	for i, text := range f.Types {
		at := fmt.Sprintf("types.%d", i)
		source, objectType, ok := strings.Cut(text, "/")
		src := c.Sources[source]
		switch {
		case text == "*":
		case !ok || source == "" || objectType == "":
			check.Fail(at, "%q is not SOURCE/TYPE: write e.g. stripe/subscription, stripe/* or \"*\"", text)
		case src == nil:
			check.Fail(at, "source %q is not configured%s", source, didYouMean(source, sortedKeys(c.Sources), ""))
		case objectType != "*":
			if similar := didYouMean(objectType, src.unknownType(source, objectType), source+"/"); similar != "" {
				check.Fail(at, "source %s has no known object type %q%s", source, objectType, similar)
			}
		}
	}
}

// didYouMean names the known name that is similar to a misspelt one; "" for none.
func didYouMean(name string, known []string, prefix string) string {
	if similar := closestName(name, known); similar != "" {
		return "; did you mean " + prefix + similar + "?"
	}
	return ""
}

// unknownType returns the known object types if they do not include one; none where the types are
// not known.
func (s *Source) unknownType(name, objectType string) []string {
	p, _ := s.provider(name)
	known := s.objectTypes(p)
	if slices.Contains(known, objectType) {
		return nil
	}
	return known
}

// forwardWarnings reports types that the source's provider does not have. Only a similar name is an
// error, because a provider may add types.
func (c *Config) forwardWarnings() (all []string) {
	for _, name := range sortedKeys(c.Forward) {
		for i, s := range c.Forward[name].Types {
			source, objectType, _ := strings.Cut(s, "/")
			if src := c.Sources[source]; src != nil && objectType != "*" &&
				len(src.unknownType(source, objectType)) > 0 {
				all = append(all, c.Locate(&settings.Problem{Path: fmt.Sprintf("forward.%s.types.%d", name, i),
					Msg: fmt.Sprintf("source %s has no known object type %q, so nothing may ever be sent; list the "+
						"existing ones with `postern objects list --source %s`", source, objectType, source)}).Error())
			}
		}
	}
	return all
}

// readForwardSecrets loads the secrets of forwards.
func readForwardSecrets(c *Config, env func(string) string, p loadOptions) error {
	var bad []error
	for _, name := range sortedKeys(c.Forward) {
		secret := &c.Forward[name].Secret
		if secret.isUnset() { // already reported
			continue
		}
		err := secret.read(env, p)
		if err == nil {
			_, err = signingKey(secret.key)
		}
		if err != nil {
			bad = append(bad, &settings.Problem{Path: "forward." + name + ".secret", Msg: err.Error()})
		}
	}
	return errors.Join(bad...)
}
