package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// schemesOf returns the signature schemes of a provider.
func schemesOf(p provider.Provider) []*signature.Scheme {
	if signed, ok := p.(provider.Signed); ok {
		return signed.Schemes()
	}
	return nil
}

// checkStoreToken requires store_token where a scheme reads a token from the body, and rejects it
// elsewhere.
func (s *Source) checkStoreToken(c settings.Checker, p provider.Provider) {
	for i, scheme := range schemesOf(p) {
		token, ok := scheme.BodyToken()
		switch {
		case !ok:
			continue
		case !s.StoreToken:
			c.Fail(s.schemePath(p, i, "in"), "%s is a token in the body, and bodies are stored byte for byte. The "+
				"database, views, exports and feeds would contain it, and each of their readers could send any "+
				"delivery: have the sender send the token in a header, or write store_token: true in the source to "+
				"take that risk", token)
		}
		return
	}
	if s.StoreToken {
		c.Fail("store_token", "has no effect, because no scheme of this source reads a token from the body "+
			"(in: json:PATH or form:FIELD): leave this out")
	}
}

// schemePath returns the setting of a provider's i-th scheme. Schemes of built-in providers have no
// settings, so it returns the setting of the provider.
func (s *Source) schemePath(p provider.Provider, i int, setting string) string {
	switch {
	case p.Name() != hmac.Name:
		return "provider"
	case len(s.Schemes) > 0:
		return fmt.Sprintf("schemes.%d.%s", i, setting)
	}
	return "scheme." + setting
}

// checkExtendableForms rejects hashes that can be extended over a body that is read as a form: an
// attacker could add fields. No known sender signs forms with such a hash.
func (s *Source) checkExtendableForms(c settings.Checker, p *declared.Provider) {
	form := func(f declared.BodyForm) bool { return f != declared.JSON }
	for i, scheme := range p.Schemes() {
		coversBody := slices.ContainsFunc(scheme.Message.Refs(), func(r signature.Ref) bool {
			return r.Kind == signature.Body || r.Kind == signature.SortedForm
		})
		if scheme.IsExtendable() && coversBody && slices.ContainsFunc(p.Spec().Events.Bodies, form) {
			c.Fail(s.schemePath(p, i, "message"), "this hash can be extended: with one signed form, an attacker can "+
				"sign a longer one with additional fields. Write method: hmac, or put {secret} last, if the sender "+
				"signs in that way; otherwise remove form and payload from events.body")
		}
	}
}

// checkSecrets asks the provider whether it can use the source's secrets, and rejects secrets that
// are easy to guess. Errors name a secret and never show it.
func (s *Source) checkSecrets(name string, p provider.Provider) error {
	src := s.providerSource(name)
	err := p.Check(src)
	if of, ok := p.(*declared.Provider); ok && err == nil && p.Name() == hmac.Name {
		err = checkKeyPairs(of.Schemes(), src.Secrets)
	}
	if err != nil {
		return &settings.Problem{Path: "sources." + name, Msg: err.Error()}
	}
	var bad []error
	for i, secret := range src.Secrets {
		reject := func(format string, args ...any) {
			text := fmt.Sprintf("secret %q: ", secret.Name) + fmt.Sprintf(format, args...)
			bad = append(bad, &settings.Problem{Path: fmt.Sprintf("sources.%s.secrets.%d", name, i), Msg: text})
		}
		size, shared := smallestSize(schemesOf(p), secret.Value)
		switch {
		case len(bytes.TrimSpace(secret.Value)) == 0:
			reject("contains only white space: copy the secret from the sender's page")
		case shared && size < signature.MinSecret:
			reject("has fewer than %d bytes, not counting a prefix such as whsec_, and can be guessed: copy the "+
				"whole secret, "+
				"or make one with `openssl rand -hex 32` and give it to the sender too", signature.MinSecret)
		}
	}
	return errors.Join(bad...)
}

// smallestSize returns the size of a secret for the scheme that derives the shortest key from it.
// The second result is false where no scheme uses it as a shared secret.
func smallestSize(schemes []*signature.Scheme, secret []byte) (smallest int, found bool) {
	for _, scheme := range schemes {
		if size, ok := scheme.SecretSize(secret); ok && (!found || size < smallest) {
			smallest, found = size, true
		}
	}
	return smallest, found
}

// verificationWarnings reports sources whose verification works but is weaker than it could be.
func (c *Config) verificationWarnings() (all []string) {
	for _, name := range sortedKeys(c.Sources) {
		s := c.Sources[name]
		p, err := s.provider(name)
		if err != nil || p == nil {
			continue
		}
		warn := func(path, format string, args ...any) {
			problem := &settings.Problem{Path: "sources." + name + "." + path, Msg: fmt.Sprintf(format, args...)}
			all = append(all, c.Locate(problem).Error())
		}
		if s.StoreToken {
			warn("store_token", "is on: stored bodies contain the token that authenticates the sender, "+
				"and each of their readers can send any delivery")
		}
		s.warnSecrets(schemesOf(p), warn)
		for i, scheme := range schemesOf(p) {
			switch {
			case scheme.IsExtendable():
				warn(s.schemePath(p, i, "message"), "this hash can be extended: with one signed delivery an attacker "+
					"can sign it with additional bytes at its end. The result is an event that cannot be read as "+
					"JSON. Write method: hmac, or put {secret} last, if the sender can sign so")
			case scheme.Method == signature.Hash && scheme.Digest == signature.SHA1:
				warn(s.schemePath(p, i, "digest"), "SHA-1 has collisions, which a secret at the end does not prevent: "+
					"if a sender signs one of two prepared bodies, the signature fits the other too. "+
					"Write method: hmac, or digest: sha256, if the sender can sign so")
			}
		}
	}
	return all
}

// warnSecrets warns of short keys. A delivery does not help to guess a token, so tokens only need
// the minimum size.
func (s *Source) warnSecrets(schemes []*signature.Scheme, warn func(path, format string, args ...any)) {
	isToken := func(s *signature.Scheme) bool { return s.Method == signature.Token }
	keyed := slices.DeleteFunc(slices.Clone(schemes), isToken)
	for i, secret := range s.Secrets {
		if size, ok := smallestSize(keyed, secret.secret); ok && size < signature.RecommendedSecret {
			warn("secrets."+strconv.Itoa(i), "secret %q has fewer than %d bytes (112 bits, the minimum of NIST SP "+
				"800-131A for an HMAC): with one delivery an attacker can try secrets on another machine. Create a "+
				"longer one with `openssl rand -hex 32`, if the sender lets you choose it", secret.Name,
				signature.RecommendedSecret)
		}
	}
}
