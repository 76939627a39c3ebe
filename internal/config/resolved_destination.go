package config

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/settings"
)

// ResolvedDestination says how to call a destination.
type ResolvedDestination struct {
	Name, URL string
	// Headers of each call, including the credential.
	Headers http.Header
	// Mail is the mail server; nil for an HTTP destination.
	Mail *mail.Server
	// SigningKey signs calls as Standard Webhooks defines it; nil: calls are not signed.
	SigningKey []byte
	// Secrets are texts that must not be stored.
	Secrets []string
	// Allow are private networks that may be called. AllowedOnly allows no public address either.
	Allow             []netip.Prefix
	AllowedOnly       bool
	Concurrency, Rate int
	MaxResponse       int64
	// Timeout limits a call where the step sets none.
	Timeout time.Duration
	// MaxTimeout is the longest timeout of a call to it. KeyRetention is how long it remembers a
	// step's key.
	MaxTimeout, KeyRetention time.Duration
}

// Address identifies the service: two destinations with the same address are the same service.
func (r *ResolvedDestination) Address() string {
	if r.Mail != nil {
		return net.JoinHostPort(r.Mail.Host, strconv.Itoa(r.Mail.Port))
	}
	return r.URL
}

// ResolveDestinations returns all destinations. Use it for a Config from Load, LoadDev or Parse,
// which have checked them.
func (c *Config) ResolveDestinations() (all []ResolvedDestination) {
	for _, name := range sortedKeys(c.Destinations) {
		all = append(all, c.Destinations[name].resolve(name, c.maxCallTimeout(name)))
	}
	for _, name := range sortedKeys(c.Forward) {
		d := c.Forward[name].destination()
		r := d.resolve(forwardPrefix+name, d.Timeout)
		r.AllowedOnly = strings.HasPrefix(string(d.URL), "http:")
		all = append(all, r)
	}
	return all
}

func (d *Destination) resolve(name string, maxTimeout time.Duration) ResolvedDestination {
	r := ResolvedDestination{Name: name, URL: strings.TrimRight(string(d.URL), "/"), Headers: http.Header{},
		Allow: networks(d.Allow), Concurrency: d.Concurrency, Rate: d.Rate, MaxResponse: int64(d.MaxResponseBytes),
		Timeout: d.Timeout, MaxTimeout: maxTimeout, KeyRetention: d.KeyRetention}
	for header, value := range d.Headers {
		r.Headers.Set(header, value)
	}
	if !settings.IsZero(d.SMTP) {
		r.Mail = d.SMTP.server()
		r.Secrets = d.SMTP.secrets()
	}
	if len(d.Key.key) > 0 {
		header, value, _ := strings.Cut(cmp.Or(d.Header, "Authorization: Bearer {key}"), ":")
		coded := base64.StdEncoding.EncodeToString(d.Key.key)
		r.Secrets = secretForms(string(d.Key.key), coded)
		r.Headers.Set(strings.TrimSpace(header), strings.TrimSpace(strings.NewReplacer("{key}", string(d.Key.key),
			"{key_base64}", coded).Replace(value)))
	}
	if r.SigningKey, _ = signingKey(d.SigningSecret.key); r.SigningKey != nil {
		r.Secrets = append(r.Secrets, secretForms(string(d.SigningSecret.key),
			strings.TrimPrefix(string(d.SigningSecret.key), signingPrefix))...)
	}
	return r
}

// secretForms returns all forms in which a response may repeat secrets, the longest first:
// unchanged, the password of user:password, and each as JSON and URLs encode it.
func secretForms(secrets ...string) (all []string) {
	for _, s := range secrets {
		parts := []string{s}
		if _, password, ok := strings.Cut(s, ":"); ok && len(password) >= 8 {
			parts = append(parts, password)
		}
		for _, p := range parts {
			quoted, _ := json.Marshal(p) // a string always marshals
			all = append(all, p, strings.Trim(string(quoted), `"`), url.QueryEscape(p), url.PathEscape(p))
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(all)
}

const signingPrefix = "whsec_"

// signingKey returns the key in a Standard Webhooks secret; nil for none.
func signingKey(secret []byte) ([]byte, error) {
	if len(secret) == 0 {
		return nil, nil
	}
	coded, ok := strings.CutPrefix(string(secret), signingPrefix)
	key, err := base64.StdEncoding.DecodeString(coded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errors.New("is not a Standard Webhooks secret: create one with `echo whsec_$(openssl rand " +
			"-base64 32)`")
	}
	return key, nil
}

// maxCallTimeout returns the longest timeout of a call to a destination, including calls of checks.
func (c *Config) maxCallTimeout(destination string) time.Duration {
	most := c.Destinations[destination].Timeout
	for _, e := range c.Effects {
		for i := range e.Steps {
			s := &e.Steps[i]
			if to := c.Destinations[s.To]; to != nil && (s.To == destination || s.Check.To == destination) {
				most = max(most, cmp.Or(s.Timeout, to.Timeout))
			}
		}
	}
	return most
}
