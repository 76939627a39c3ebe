package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// demoSuffix ends every demo secret. Demo secrets are public, and only `postern dev` accepts them.
// No provider creates such a value.
const demoSuffix = signature.DemoSuffix

// maxSecret is the largest accepted secret in bytes. A larger file is the wrong one.
const maxSecret = 4096

// Endpoint is a source ready for use: its provider and the provider's settings.
type Endpoint struct {
	Provider provider.Provider
	Source   *provider.Source
	// IsCustomized: the source defines its own signature or event format, so the provider's samples
	// do not match it.
	IsCustomized bool
	// API says how to read the provider's API; nil where none is configured.
	API *provider.API
	// Reader reads the API and stored API responses; nil where none can.
	Reader provider.Reader
	// ObjectTypes are the known object types; none where they are unknown. Other types may occur.
	ObjectTypes []string
	// ExcludedAccounts are not reconciled with all the others; "" is the key's own account.
	ExcludedAccounts []string
	// MaxBodyBytes is the largest body that this source accepts.
	MaxBodyBytes int64
	// RedactOnRequest: the sender's deletion requests are executed without an operator.
	RedactOnRequest bool
	// RequireCommit: the sender needs the event's id in the response, so deliveries never go to the
	// spool.
	RequireCommit bool
	// AllowFrom are the networks that may send deliveries; empty: all.
	AllowFrom []netip.Prefix
	// RateLimit has its defaults; zero: no limit.
	RateLimit RateLimit
	// SecretOrigins say where the secrets of Source come from, in their order.
	SecretOrigins []SecretOrigin
}

// SecretOrigin says where a secret comes from: the variable Env, the file File, or the
// configuration itself if both are empty.
type SecretOrigin struct{ Name, Env, File string }

// secretOrigins returns where the secrets come from.
func (s *Source) secretOrigins() (all []SecretOrigin) {
	for _, secret := range s.Secrets {
		all = append(all, SecretOrigin{secret.Name, secret.Env, secret.File})
	}
	return all
}

// RefetchReader returns the reader of stored API responses; nil where there is none.
func (e *Endpoint) RefetchReader() provider.Refetcher {
	if e.Reader == nil {
		return nil // a nil interface, not an interface around a nil pointer
	}
	return e.Reader
}

// SimilarType returns the known object type that is similar to a misspelt one; "" for a known type,
// and where none is similar.
func (e *Endpoint) SimilarType(objectType string) string {
	if slices.Contains(e.ObjectTypes, objectType) {
		return ""
	}
	return closestName(objectType, e.ObjectTypes)
}

// Endpoints returns all sources, sorted by name. Use it for a Config from Load, LoadDev or Parse,
// which have checked them.
func (c *Config) Endpoints() []Endpoint {
	var out []Endpoint
	for _, name := range sortedKeys(c.Sources) {
		src := c.Sources[name]
		p, _ := src.provider(name)
		if p == nil {
			continue
		}
		source := src.providerSource(name)
		source.WholeSeconds = src.secondPrecisionTypes(p)
		reader := src.reader(settings.Check(""), p)
		api, _ := src.API.providerAPI(p, reader, source)
		out = append(out, Endpoint{Provider: p, Source: source, IsCustomized: src.isCustomized(), API: api,
			Reader: reader, ObjectTypes: src.objectTypes(p),
			ExcludedAccounts: src.Reconcile.excludedAccounts(), MaxBodyBytes: int64(src.MaxBodyBytes),
			RedactOnRequest: src.RedactOnRequest,
			RequireCommit:   src.requiresCommit(p),
			AllowFrom:       networks(src.AllowFrom), RateLimit: src.RateLimit.withDefaults(),
			SecretOrigins: src.secretOrigins()})
	}
	return out
}

// requiresCommit returns the configured value. The default is true for provider: api, because its
// callers read the response.
func (s *Source) requiresCommit(p provider.Provider) bool {
	if s.RequireCommit != nil {
		return *s.RequireCommit
	}
	_, direct := p.(provider.DirectProvider)
	return direct
}

// isCustomized reports whether the provider's samples do not match the source's sender. Events of
// provider: api always name themselves.
func (s *Source) isCustomized() bool {
	return s.Provider != api.Name && (s.Scheme != nil || len(s.Schemes) > 0 || !settings.IsZero(s.Events) ||
		len(s.Objects) > 0)
}

func (s *Source) providerSource(name string) *provider.Source {
	out := &provider.Source{Name: name, Account: s.Account, Accounts: s.Accounts, Key: s.Key, Tolerance: s.Tolerance,
		URL: s.URL, Keys: new(signature.Keys)}
	for _, secret := range s.Secrets {
		out.Secrets = append(out.Secrets, provider.Secret{Name: secret.Name, Value: secret.secret})
	}
	return out
}

// checkSources returns the problems of the providers' settings. Each provider checks what is
// missing. It skips sources without a secret, which another check reports.
func checkSources(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		p, err := c.Sources[name].provider(name)
		bad = append(bad, err)
		if _, sendsRequests := p.(provider.Eraser); p != nil && c.Sources[name].RedactOnRequest && !sendsRequests {
			bad = append(bad, &settings.Problem{Path: "sources." + name + ".redact_on_request", Msg: "the provider " +
				p.Name() +
				" sends no deletion requests: leave this out"})
		}
		if p != nil {
			bad = append(bad, c.Sources[name].checkAPI(name, p, true))
		}
		if p == nil || err != nil || !hasSecrets(c.Sources[name].providerSource(name)) {
			continue
		}
		bad = append(bad, c.Sources[name].checkSecrets(name, p))
	}
	if errors.Join(bad...) == nil {
		for _, e := range c.Endpoints() {
			bad = append(bad, c.Sources[e.Source.Name].checkReconcile(e.Source.Name, &e))
		}
	}
	return errors.Join(bad...)
}

// checkAPI returns the problems of the section api and, if called is true, of the settings that a
// call needs.
func (s *Source) checkAPI(name string, p provider.Provider, called bool) error {
	path := "sources." + name + ".api"
	c := settings.Check(path)
	reader := s.reader(c, p)
	if c.Count() > 0 || !called {
		return c.Err()
	}
	if _, err := s.API.providerAPI(p, reader, s.providerSource(name)); err != nil {
		return &settings.Problem{Path: path, Msg: err.Error()}
	}
	return nil
}

func hasSecrets(src *provider.Source) bool {
	return len(src.Secrets) > 0 &&
		!slices.ContainsFunc(src.Secrets, func(s provider.Secret) bool { return len(s.Value) == 0 })
}

// readSecrets loads all secrets from their variables and files, once.
func readSecrets(c *Config, env func(string) string, p loadOptions) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		for i := range c.Sources[name].Secrets {
			s := &c.Sources[name].Secrets[i]
			if err := s.read(env, p); err != nil {
				bad = append(bad, &settings.Problem{Path: fmt.Sprintf("sources.%s.secrets.%d", name, i),
					Msg: fmt.Sprintf("secret %q: %v", s.Name, err)})
			}
		}
		if err := readToken(c.Sources[name].Handshake.Challenge, env, p); err != nil {
			bad = append(bad, &settings.Problem{Path: "sources." + name + ".handshake.challenge.token",
				Msg: err.Error()})
		}
		if settings.IsZero(c.Sources[name].API) {
			continue
		}
		if err := c.Sources[name].API.Key.read(env, p); err != nil {
			bad = append(bad, &settings.Problem{Path: "sources." + name + ".api.key", Msg: err.Error()})
		}
	}
	for _, name := range sortedKeys(c.Destinations) {
		if err := c.Destinations[name].SMTP.read(env, p); err != nil {
			bad = append(bad, &settings.Problem{Path: "destinations." + name + ".smtp.password", Msg: err.Error()})
		}
		for setting, key := range map[string]*APIKey{"key": &c.Destinations[name].Key,
			"signing_secret": &c.Destinations[name].SigningSecret} {
			if key.isUnset() {
				continue
			}
			if err := key.read(env, p); err != nil {
				bad = append(bad, &settings.Problem{Path: "destinations." + name + "." + setting, Msg: err.Error()})
			}
		}
	}
	return errors.Join(append(bad, readForwardSecrets(c, env, p))...)
}

// readToken loads the token of a challenge from the variable or file.
func readToken(c *declared.Challenge, env func(string) string, p loadOptions) error {
	if c == nil || c.Token == nil {
		return nil
	}
	if c.Token.From == (signature.Ref{}) {
		return errors.New("from is not set: write where the sender puts the token, e.g. query:hub.verify_token")
	}
	s := Secret{Value: c.Token.Value, Env: c.Token.Env, File: c.Token.File}
	err := s.read(env, p)
	c.Token.Loaded = s.secret
	return err
}

func (s *Secret) read(env func(string) string, p loadOptions) error {
	given := 0
	for _, text := range []string{string(s.Value), s.Env, s.File} {
		if text != "" {
			given++
		}
	}
	if given != 1 {
		return errors.New("give exactly one of value, env and file")
	}
	value, err := s.fetch(env, p)
	if err != nil {
		return err
	}
	if !p.demo && isDemoSecret(value) {
		return errors.New("is a public demo secret, allowed in postern dev only: use the one that your " +
			"provider shows for this endpoint")
	}
	s.secret = value
	return nil
}

func (s *Secret) fetch(env func(string) string, p loadOptions) ([]byte, error) {
	switch {
	case s.Env != "":
		value := env(s.Env)
		if value == "" {
			return nil, fmt.Errorf("the variable %s is %s", s.Env, p.missingReason(s.Env))
		}
		return []byte(value), nil
	case s.File != "":
		return p.fileTracker.read(s.File, readSecretFile)
	}
	return []byte(s.Value), nil
}

func readSecretFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// Pipes are allowed (process substitution). Their size is unknown before they are read.
	if info.IsDir() || info.Size() > maxSecret {
		return nil, fmt.Errorf("%s: the file has more than %d bytes, so it is probably not a secret", path, maxSecret)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 || len(b) > maxSecret {
		return nil, fmt.Errorf("%s: the secret must have 1 to %d bytes", path, maxSecret)
	}
	return b, nil
}

func isDemoSecret(secret []byte) bool { return strings.HasSuffix(string(secret), demoSuffix) }
