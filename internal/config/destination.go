package config

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/postern-gateway/postern/internal/settings"
)

// Destination is an external service that effects call: an HTTP API or a mail server.
type Destination struct {
	// URL to which Postern joins the paths of steps, e.g. https://api.example.com/v1. Plain http is
	// allowed for a destination without a key, or on this machine.
	URL settings.URL `yaml:"url,omitempty"`
	// SMTP describes a mail server. It replaces url.
	SMTP SMTP `yaml:"smtp,omitempty"`
	// Key is the credential. Leave the section out if the destination needs none.
	Key APIKey `yaml:"key,omitempty"`
	// Header is the header that carries the key. Write name and value, with {key} in the value. Use
	// {key_base64} for 'Authorization: Basic {key_base64}' and a key of the form user:password.
	Header string `yaml:"header,omitempty" unset:"Authorization: Bearer {key}"`
	// SigningSecret signs each call as Standard Webhooks defines it (webhook-id, webhook-timestamp,
	// webhook-signature), so that the receiver can verify the sender. It consists of whsec_ and 24
	// to 64 random bytes as base64, e.g. the output of `echo whsec_$(openssl rand -base64 32)`. The
	// id is the step's key, which is the same in each attempt.
	SigningSecret APIKey `yaml:"signing_secret,omitempty"`
	// Headers are additional headers of each call. Commands print them, so put no secret here.
	Headers map[string]string `yaml:"headers,omitempty"`
	// IdempotencyHeader is the header that carries the step's key, so that the destination executes
	// the step once. Write none if the destination supports no such header.
	IdempotencyHeader string `yaml:"idempotency_header,omitempty" default:"Idempotency-Key"`
	// KeyRetention is how long the destination remembers a step's key, for example one day at
	// Stripe. The time counts from the step's first attempt. After it, Postern does not send a step
	// with an unknown outcome again: an operator must resolve it. Keep the default unless the
	// destination documents another time. If the destination remembers keys without limit, write
	// 87600h.
	KeyRetention time.Duration `yaml:"key_retention,omitempty" default:"24h" validate:"gte=60000000000"`
	// Allow are private, loopback or link-local addresses or networks that may be called, e.g.
	// 127.0.0.1 or 10.0.0.0/8. All other such addresses are blocked, whatever host name resolves to
	// them.
	Allow []string `yaml:"allow,omitempty" validate:"dive,network"`
	// Concurrency is the maximum number of simultaneous calls of one process.
	Concurrency int `yaml:"concurrency,omitempty" default:"8" validate:"gte=1,lte=1000"`
	// Rate is the maximum number of calls per second of one process. Leave it unset for no limit.
	Rate int `yaml:"rate,omitempty" unset:"no limit" validate:"omitempty,gte=1,lte=100000"`
	// Timeout limits one call, including its response. After the timeout, the outcome is unknown. A
	// mail server may scan a message before it responds, so it gets more time.
	Timeout time.Duration `yaml:"timeout,omitempty" unset:"30s; 2m for a mail server" validate:"gte=10000000,lte=600000000000"`
	// MaxResponseBytes is how much of a response is read. If a longer response contains a value to
	// capture, the step's outcome is unknown.
	MaxResponseBytes settings.Bytes `yaml:"max_response_bytes,omitempty" default:"1MiB" validate:"gte=1024,lte=67108864"`
}

func (d *Destination) check(path string) error {
	switch {
	case !settings.IsZero(d.SMTP):
		return d.checkMail(path)
	case d.URL == "":
		return &settings.Problem{Path: path + ".url", Msg: "is not set: write the address to call, or smtp for a " +
			"mail server"}
	}
	bad := []error{d.checkURL(path + ".url")}
	if _, err := signingKey(d.SigningSecret.key); err != nil {
		bad = append(bad, &settings.Problem{Path: path + ".signing_secret", Msg: err.Error()})
	}
	c := settings.Check(path)
	c.CredentialHeader("header", d.Header)
	for _, name := range sortedKeys(d.Headers) {
		c.Under("headers").CallHeader(name, d.Headers[name], destinationCredential)
	}
	if d.IdempotencyHeader != "none" && !settings.IsHeaderName(d.IdempotencyHeader) {
		c.Fail("idempotency_header", "%q is not a header name: write one, or none", d.IdempotencyHeader)
	}
	return errors.Join(append(bad, c.Err())...)
}

// checkURL requires an address to which calls, and the key, may be sent.
func (d *Destination) checkURL(path string) error {
	u, err := url.Parse(string(d.URL))
	switch {
	case err != nil, u.Scheme != "https" && u.Scheme != "http", u.Hostname() == "":
		return &settings.Problem{Path: path, Msg: fmt.Sprintf("%q is not an address that can be called: write e.g. "+
			"https://api.example.com",
			settings.MaskURL(string(d.URL)))}
	case u.User != nil, u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return &settings.Problem{Path: path, Msg: "has a user, a query or a # part: remove them; a credential has a " +
			"setting of its own, and a query belongs to a step's path"}
	case u.Scheme == "http" && !d.Key.isUnset() && !isLoopbackHost(u.Hostname()):
		return &settings.Problem{Path: path, Msg: fmt.Sprintf("%q is plain http, so everyone on the network path can "+
			"read the key: write https", settings.MaskURL(string(d.URL)))}
	}
	return nil
}

// destinationCredential says what to do with a credential in the headers of a call.
const destinationCredential = "the destination holds the credential: set its key, and write in its header how to " +
	"send it"
