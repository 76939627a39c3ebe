package config

import (
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// standardWebhooks is the only provider, besides hmac, whose events and objects the configuration
// describes: its senders share the signature format and little else.
const standardWebhooks = "standardwebhooks"

// provider builds the source's provider from its settings. The error joins all problems of these
// settings. The provider is nil where none has that name, which another check reports.
func (s *Source) provider(name string) (provider.Provider, error) {
	known, ok := all.Named(s.Provider)
	if !ok {
		return nil, nil
	}
	c := settings.Check("sources." + name)
	p := s.buildProvider(c, known)
	s.checkStoreToken(c, p)
	return p, c.Err()
}

func (s *Source) buildProvider(c settings.Checker, known provider.Provider) provider.Provider {
	if s.Provider == hmac.Name {
		return s.hmacProvider(c)
	}
	for key, is := range map[string]bool{"scheme": s.Scheme != nil, "schemes": len(s.Schemes) > 0,
		"handshake": !settings.IsZero(s.Handshake), "reply": !settings.IsZero(s.Reply)} {
		if is {
			c.Fail(key, "%s has a fixed signature and response format: leave this out, or write provider: hmac",
				s.Provider)
		}
	}
	if s.Provider == api.Name {
		return s.directProvider(c)
	}
	events, objects := !settings.IsZero(s.Events), len(s.Objects) > 0
	if !events && !objects {
		return known
	}
	open, ok := known.(*declared.Provider)
	if s.Provider != standardWebhooks || !ok {
		for key, is := range map[string]bool{"events": events, "objects": objects} {
			if is {
				c.Fail(key, "%s defines its events and objects itself: leave this out, or write provider: hmac, "+
					"standardwebhooks or api", s.Provider)
			}
		}
		return known
	}
	spec := open.Spec()
	if events {
		spec.Events = s.Events.Over(spec.Events)
		spec.Events.Check(c.Under("events"))
	}
	if objects {
		spec.Objects = slices.Clone(s.Objects)
		declared.CheckObjects(c.Under("objects"), spec.Objects, &spec.Events, spec.Schemes)
	}
	spec.Docs = declared.Docs{Title: spec.Title}
	return declared.New(spec)
}

func (s *Source) hmacProvider(c settings.Checker) provider.Provider {
	var schemes []*signature.Scheme
	add := func(key string, of *signature.Scheme) {
		scheme := of.Complete()
		scheme.CheckConfigured(c.Under(key))
		schemes = append(schemes, scheme)
	}
	switch {
	case s.Scheme != nil && len(s.Schemes) > 0:
		c.Fail("schemes", "scheme is set too: move it into schemes, or leave these out")
	case s.Scheme != nil:
		add("scheme", s.Scheme)
	case len(s.Schemes) == 0:
		c.Fail("scheme", "is not set: write how the sender signs, e.g. scheme: {header: X-Signature, prefix: "+
			"'sha256='}; docs/reference/senders.md has it for many senders")
	default:
		for i := range s.Schemes {
			add(fmt.Sprintf("schemes.%d", i), &s.Schemes[i])
		}
	}
	requireKeyPrefix(schemes)
	events, objects := s.Events.Over(declared.Events{}), slices.Clone(s.Objects)
	events.Check(c.Under("events"))
	events.CheckToken(c.Under("events"), schemes)
	declared.CheckObjects(c.Under("objects"), objects, &events, schemes)
	s.Handshake.Check(c.Under("handshake"))
	s.Reply.Check(c.Under("reply"))
	p := hmac.Of(schemes, events, objects, s.Handshake, s.Reply)
	s.checkExtendableForms(c, p)
	return p
}

// directProvider builds the provider for the user's own services. The place and key of events are
// fixed. The source may define types, accounts and objects.
func (s *Source) directProvider(c settings.Checker) provider.Provider {
	own, under := api.Events(), c.Under("events")
	for key, is := range map[string]bool{"key": len(s.Events.Key) > 0, "split": s.Events.Split != "",
		"item": s.Events.Item != "", "body": len(s.Events.Bodies) > 0,
		"api_version": len(s.Events.APIVersion) > 0, "every_delivery": s.Events.UniquePerDelivery} {
		if is {
			under.Fail(key, "CloudEvents, and the header Idempotency-Key, define this for provider: api: leave it out")
		}
	}
	events, objects := s.Events.Over(own), slices.Clone(s.Objects)
	events.Split = own.Split
	if len(s.Events.Type) > 0 { // a CloudEvent's type need not be repeated
		events.Type = append(slices.Clone(events.Type), own.Type...)
	}
	made := api.Of(events, objects)
	events.Check(under)
	events.CheckToken(under, made.Schemes())
	declared.CheckObjects(c.Under("objects"), objects, &events, nil)
	return made
}

// requireKeyPrefix marks the schemes of key pairs of a source that also has a shared secret: there
// a public key needs PEM format or the prefix whpk_. Without that mark a public key could be used
// as a shared secret, and everyone could sign.
func requireKeyPrefix(schemes []*signature.Scheme) {
	if !mixesKeyKinds(schemes) {
		return
	}
	for _, s := range schemes {
		s.Key.RequirePrefix = s.IsAsymmetric()
	}
}

// mixesKeyKinds reports whether a source uses both shared secrets and public keys.
func mixesKeyKinds(schemes []*signature.Scheme) bool {
	public := func(s *signature.Scheme) bool { return s.IsAsymmetric() }
	shared := func(s *signature.Scheme) bool { return !s.IsAsymmetric() }
	return slices.ContainsFunc(schemes, public) && slices.ContainsFunc(schemes, shared)
}

// checkKeyPairs requires a public key among the secrets for each key-pair scheme that is configured
// alongside a shared-secret scheme. It cannot recognize a public key without prefix among the other
// secrets, but it can see that none has one.
func checkKeyPairs(schemes []*signature.Scheme, secrets []provider.Secret) error {
	if !mixesKeyKinds(schemes) {
		return nil
	}
	for _, s := range schemes {
		fits := func(secret provider.Secret) bool { return s.CheckSecret(secret.Value) == nil }
		if s.IsAsymmetric() && !slices.ContainsFunc(secrets, fits) {
			return fmt.Errorf("secrets: none is a public key for scheme %s; write it as PEM, or put whpk_ before "+
				"it: alongside a scheme with a shared secret, a public key without prefix would be used as that "+
				"secret, and everyone could sign", s.Name)
		}
	}
	return nil
}
