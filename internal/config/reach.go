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
)

// Reach is how a destination is called.
type Reach struct {
	Name, URL string
	// Headers of each call, the credential's among them.
	Headers http.Header
	// Mail is the mail server; nil: it is called over HTTP.
	Mail *mail.Server
	// Sign is the key that calls are signed with, by Standard Webhooks; nil: they are not.
	Sign []byte
	// Secrets are texts that nothing stored may hold.
	Secrets           []string
	Allow             []netip.Prefix
	Concurrency, Rate int
	MaxAnswer         int64
	// Timeout bounds a call where a step says nothing else.
	Timeout time.Duration
	// Longest is the longest timeout of a call to it, KeysKept how long it knows a step by its key.
	Longest, KeysKept time.Duration
}

// Place is where it is: two with one place are the same other side.
func (r *Reach) Place() string {
	if r.Mail != nil {
		return net.JoinHostPort(r.Mail.Host, strconv.Itoa(r.Mail.Port))
	}
	return r.URL
}

// Reaches are the destinations. It is for a Config from Load, LoadDev or Parse, which have checked them.
func (c *Config) Reaches() (all []Reach) {
	for _, name := range sortedKeys(c.Destinations) {
		d := c.Destinations[name]
		r := Reach{Name: name, URL: strings.TrimRight(string(d.URL), "/"), Headers: http.Header{}, Allow: networks(d.Allow), Concurrency: d.Concurrency, Rate: d.Rate, MaxAnswer: int64(d.MaxAnswerBytes)}
		r.Timeout, r.Longest, r.KeysKept = d.Timeout, c.longest(name), d.KeysKept
		for header, value := range d.Headers {
			r.Headers.Set(header, value)
		}
		if !isZero(d.SMTP) {
			r.Mail = d.SMTP.server()
			r.Secrets = d.SMTP.secrets()
		}
		if len(d.Key.key) > 0 {
			header, value, _ := strings.Cut(cmp.Or(d.Header, "Authorization: Bearer {key}"), ":")
			coded := base64.StdEncoding.EncodeToString(d.Key.key)
			r.Secrets = secretForms(string(d.Key.key), coded)
			r.Headers.Set(strings.TrimSpace(header), strings.TrimSpace(strings.NewReplacer("{key}", string(d.Key.key), "{key_base64}", coded).Replace(value)))
		}
		if r.Sign, _ = signingKey(d.SigningSecret.key); r.Sign != nil {
			r.Secrets = append(r.Secrets, secretForms(string(d.SigningSecret.key), strings.TrimPrefix(string(d.SigningSecret.key), signingPrefix))...)
		}
		all = append(all, r)
	}
	return all
}

// secretForms are all forms in which an answer may repeat secrets, the longest first: as they are, the password of user:password, and each as JSON and addresses write it.
func secretForms(secrets ...string) (all []string) {
	for _, s := range secrets {
		parts := []string{s}
		if _, password, ok := strings.Cut(s, ":"); ok && len(password) >= 8 {
			parts = append(parts, password)
		}
		for _, p := range parts {
			quoted, _ := json.Marshal(p) // a text can always be written
			all = append(all, p, strings.Trim(string(quoted), `"`), url.QueryEscape(p), url.PathEscape(p))
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(all)
}

const signingPrefix = "whsec_"

// signingKey is the key in a secret of Standard Webhooks; nil for none.
func signingKey(secret []byte) ([]byte, error) {
	if len(secret) == 0 {
		return nil, nil
	}
	coded, ok := strings.CutPrefix(string(secret), signingPrefix)
	key, err := base64.StdEncoding.DecodeString(coded)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return nil, errors.New("is no secret of Standard Webhooks: make one with `echo whsec_$(openssl rand -base64 32)`")
	}
	return key, nil
}

// longest is the longest timeout of a call to a destination, which may be to ask whether a step was done.
func (c *Config) longest(destination string) time.Duration {
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
