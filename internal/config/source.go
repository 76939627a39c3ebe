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
	"github.com/postern-gateway/postern/internal/signature"
)

// demoMark ends every demo secret's value: documented and worthless, taken by `postern dev` only. No provider makes such a value.
const demoMark = signature.DemoMark

// maxSecret is the most bytes a secret may have; a larger file is surely the wrong one.
const maxSecret = 4096

// Endpoint is a source ready for use: its provider and what that needs to know.
type Endpoint struct {
	Provider provider.Provider
	Source   *provider.Source
	// Own: the source says itself how its sender signs or names events, so that the provider's samples are not of that sender.
	Own bool
	// API is how the provider's API is read; nil where it is not.
	API *provider.API
	// Reader is who reads it, and what was read of it before; nil where nobody can.
	Reader provider.Reader
	// Except are the accounts that are not reconciled with all the others, "" for the one that the key is of.
	Except []string
	// MaxBodyBytes is the largest body this source takes.
	MaxBodyBytes int64
	// RedactOnRequest: what its sender asks to be forgotten is redacted without a person.
	RedactOnRequest bool
	// FinalReceipt: its sender needs our id of the event, so nothing is kept in the spool for it.
	FinalReceipt bool
	// AllowFrom is where deliveries may come from; empty: everywhere.
	AllowFrom []netip.Prefix
	// RateLimit is complete; zero: there is none.
	RateLimit RateLimit
}

// Looker is who reads what was read of the provider's API; nil where nobody can.
func (e *Endpoint) Looker() provider.Looker {
	if e.Reader == nil {
		return nil // and no interface around one
	}
	return e.Reader
}

// Endpoints are all sources, sorted by name. It is for a Config from Load, LoadDev or Parse, which have checked them.
func (c *Config) Endpoints() []Endpoint {
	var out []Endpoint
	for _, name := range sortedKeys(c.Sources) {
		src := c.Sources[name]
		p, _ := src.provider(name)
		if p == nil {
			continue
		}
		source := src.forProvider(name)
		source.WholeSeconds = src.wholeSeconds(p)
		reader := src.reader(&builder{}, p)
		api, _ := src.API.forProvider(p, reader, source)
		out = append(out, Endpoint{Provider: p, Source: source, Own: src.own(), API: api, Reader: reader, Except: src.Reconcile.except(), MaxBodyBytes: int64(src.MaxBodyBytes), RedactOnRequest: src.RedactOnRequest, FinalReceipt: src.finalReceipt(p),
			AllowFrom: networks(src.AllowFrom), RateLimit: src.RateLimit.complete()})
	}
	return out
}

// finalReceipt: where a source says nothing, who reads our answers gets the one that stays.
func (s *Source) finalReceipt(p provider.Provider) bool {
	if s.FinalReceipt != nil {
		return *s.FinalReceipt
	}
	_, direct := p.(provider.Direct)
	return direct
}

// own: samples of the provider are not of the source's sender. Those of provider: api name themselves whatever the source says.
func (s *Source) own() bool {
	return s.Provider != api.Name && (!isZero(s.Scheme) || len(s.Schemes) > 0 || !isZero(s.Events) || len(s.Objects) > 0)
}

func (s *Source) forProvider(name string) *provider.Source {
	out := &provider.Source{Name: name, Account: s.Account, Accounts: s.Accounts, Key: s.Key, Tolerance: s.Tolerance, URL: s.URL, Keys: new(signature.Keys)}
	for _, secret := range s.Secrets {
		out.Secrets = append(out.Secrets, provider.Secret{Name: secret.Name, Value: secret.secret})
	}
	return out
}

// checkSources tells what is wrong with the settings that make a provider, and asks each source's provider what is missing. Sources that lack a secret have been told so.
func checkSources(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		p, err := c.Sources[name].provider(name)
		bad = append(bad, err)
		if _, asks := p.(provider.Eraser); p != nil && c.Sources[name].RedactOnRequest && !asks {
			bad = append(bad, &Problem{Path: "sources." + name + ".redact_on_request", Msg: "the provider " + p.Name() + " asks for nothing by its events: leave this out"})
		}
		if p != nil {
			bad = append(bad, c.Sources[name].checkAPI(name, p, true))
		}
		if p == nil || err != nil || !complete(c.Sources[name].forProvider(name)) {
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

// checkAPI tells what is wrong with how the API is read and, if it is to be called, with what a call needs.
func (s *Source) checkAPI(name string, p provider.Provider, called bool) error {
	path := "sources." + name + ".api"
	b := &builder{path: path}
	reader := s.reader(b, p)
	if len(b.bad) > 0 || !called {
		return errors.Join(b.bad...)
	}
	if _, err := s.API.forProvider(p, reader, s.forProvider(name)); err != nil {
		return &Problem{Path: path, Msg: err.Error()}
	}
	return nil
}

func complete(src *provider.Source) bool {
	return len(src.Secrets) > 0 && !slices.ContainsFunc(src.Secrets, func(s provider.Secret) bool { return len(s.Value) == 0 })
}

// readSecrets fetches every secret from where it is kept, once.
func readSecrets(c *Config, env func(string) string, p purpose) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		for i := range c.Sources[name].Secrets {
			s := &c.Sources[name].Secrets[i]
			if err := s.read(env, p); err != nil {
				bad = append(bad, &Problem{Path: fmt.Sprintf("sources.%s.secrets.%d", name, i), Msg: fmt.Sprintf("secret %q: %v", s.Name, err)})
			}
		}
		if err := c.Sources[name].Handshake.Challenge.Token.read(env, p); err != nil {
			bad = append(bad, &Problem{Path: "sources." + name + ".handshake.challenge.token", Msg: err.Error()})
		}
		if isZero(c.Sources[name].API) {
			continue
		}
		if err := c.Sources[name].API.Key.read(env, p); err != nil {
			bad = append(bad, &Problem{Path: "sources." + name + ".api.key", Msg: err.Error()})
		}
	}
	for _, name := range sortedKeys(c.Destinations) {
		if err := c.Destinations[name].SMTP.read(env, p); err != nil {
			bad = append(bad, &Problem{Path: "destinations." + name + ".smtp.password", Msg: err.Error()})
		}
		for setting, key := range map[string]*APIKey{"key": &c.Destinations[name].Key, "signing_secret": &c.Destinations[name].SigningSecret} {
			if key.unset() {
				continue
			}
			if err := key.read(env, p); err != nil {
				bad = append(bad, &Problem{Path: "destinations." + name + "." + setting, Msg: err.Error()})
			}
		}
	}
	return errors.Join(bad...)
}

func (s *Secret) read(env func(string) string, p purpose) error {
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
	if !p.demo && isDemo(value) {
		return errors.New("is a demo secret that everybody knows, allowed only in postern dev: use the one your provider shows for this endpoint")
	}
	s.secret = value
	return nil
}

func (s *Secret) fetch(env func(string) string, p purpose) ([]byte, error) {
	switch {
	case s.Env != "":
		value := env(s.Env)
		if value == "" {
			return nil, fmt.Errorf("the variable %s is %s", s.Env, p.unset(s.Env))
		}
		return []byte(value), nil
	case s.File != "":
		return p.files.read(s.File, readSecretFile)
	}
	return []byte(s.Value), nil
}

func readSecretFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	// Pipes are allowed (process substitution), and their size is not known before they are read.
	if info.IsDir() || info.Size() > maxSecret {
		return nil, fmt.Errorf("%s: a file of at most %d bytes is expected", path, maxSecret)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if len(b) == 0 || len(b) > maxSecret {
		return nil, fmt.Errorf("%s: holds no secret of 1 to %d bytes", path, maxSecret)
	}
	return b, nil
}

func isDemo(secret []byte) bool { return strings.HasSuffix(string(secret), demoMark) }
