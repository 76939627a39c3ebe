package config

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/signature"
)

// noValue is the setting for a response without a value.
const noValue = "none"

// The kinds of references that a handshake accepts.
var (
	challengeKinds = refKinds{signature.Query, signature.Header}
	handshakeKinds = refKinds{signature.JSON, signature.Form, signature.Header, signature.Query}
)

// responses reads how the source responds to handshakes and stored deliveries.
func (b *providerBuilder) responses(s *Source) hmac.Responses {
	var out hmac.Responses
	if c := &s.Handshake.Challenge; !isZero(*c) {
		out.Challenge = b.under("handshake.challenge").challenge(c)
	}
	if g := &s.Handshake.Signed; !isZero(*g) {
		under := b.under("handshake.signed")
		out.Handshake = &hmac.Handshake{When: under.condition("when", g.When, handshakeKinds),
			Echo: hmac.Echo{Member: g.Member}}
		if g.Echo != "" {
			out.Handshake.Echo.From = under.ref("echo", g.Echo, handshakeKinds)
		}
	}
	if !isZero(s.Reply) {
		out.Receipt = b.under("reply").reply(&s.Reply)
	}
	return out
}

func (b *providerBuilder) challenge(c *Challenge) *hmac.Challenge {
	out := &hmac.Challenge{Echo: hmac.Echo{Member: c.Member}, Token: c.Token.token}
	switch {
	case c.Echo == "":
		b.fail("echo", "is not set: name the value to send back (query:NAME or header:NAME), or write none")
	case c.Echo != noValue:
		out.Echo.From = b.ref("echo", c.Echo, challengeKinds)
	}
	if !c.Token.isUnset() {
		out.TokenFrom = b.under("token").ref("from", c.Token.From, challengeKinds)
	}
	return out
}

func (b *providerBuilder) reply(r *Reply) *provider.Reply {
	status := cmp.Or(r.Status, http.StatusOK)
	switch {
	case status < 200 || status > 299:
		b.fail("status", "%d would make the sender retry, or give up on, a delivery that is stored: write one from "+
			"200 to 299", status)
	case r.Body != "" && status == http.StatusNoContent:
		b.fail("body", "a response with status 204 has no body: leave it out, or write status: 200")
	case r.Body != "" && r.ContentType == "":
		b.fail("content_type", "is not set: name the body's type, e.g. text/plain")
	}
	return &provider.Reply{Status: status, ContentType: r.ContentType, Body: []byte(r.Body)}
}

// isUnset reports whether no token is configured.
func (t *ChallengeToken) isUnset() bool {
	return t.From == "" && t.Value == "" && t.Env == "" && t.File == ""
}

// read loads the token from the variable or file.
func (t *ChallengeToken) read(env func(string) string, p loadOptions) error {
	if t.isUnset() {
		return nil
	}
	if t.From == "" {
		return errors.New("from is not set: write where the sender puts the token, e.g. query:hub.verify_token")
	}
	s := Secret{Value: t.Value, Env: t.Env, File: t.File}
	if err := s.read(env, p); err != nil {
		return err
	}
	t.token = s.secret
	return nil
}

func itoa(i int) string { return strconv.Itoa(i) }
