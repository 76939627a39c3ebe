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

// noEcho is the word for an answer without a value.
const noEcho = "none"

// What the settings of a handshake may refer to.
var (
	challengeKinds = kinds{signature.Query, signature.Header}
	greetingKinds  = kinds{signature.JSON, signature.Form, signature.Header, signature.Query}
)

// answers reads what a sender is told besides the receipt.
func (b *builder) answers(s *Source) hmac.Answers {
	var out hmac.Answers
	if c := &s.Handshake.Challenge; !isZero(*c) {
		out.Challenge = b.under("handshake.challenge").challenge(c)
	}
	if g := &s.Handshake.Greeting; !isZero(*g) {
		under := b.under("handshake.greeting")
		out.Greeting = &hmac.Greeting{When: under.condition("when", g.When, greetingKinds), Echo: hmac.Echo{Member: g.As}}
		if g.Echo != "" {
			out.Greeting.Echo.From = under.ref("echo", g.Echo, greetingKinds)
		}
	}
	if !isZero(s.Reply) {
		out.Receipt = b.under("reply").reply(&s.Reply)
	}
	return out
}

func (b *builder) challenge(c *Challenge) *hmac.Challenge {
	out := &hmac.Challenge{Echo: hmac.Echo{Member: c.As}, Token: c.Token.token}
	switch {
	case c.Echo == "":
		b.fail("echo", "is not set: say which value is sent back (query:NAME or header:NAME), or write none")
	case c.Echo != noEcho:
		out.Echo.From = b.ref("echo", c.Echo, challengeKinds)
	}
	if !c.Token.unset() {
		out.TokenFrom = b.under("token").ref("from", c.Token.From, challengeKinds)
	}
	return out
}

func (b *builder) reply(r *Reply) *provider.Reply {
	status := cmp.Or(r.Status, http.StatusOK)
	switch {
	case status < 200 || status > 299:
		b.fail("status", "%d would make the sender try again, or give up, what is stored: write one from 200 to 299", status)
	case r.Body != "" && status == http.StatusNoContent:
		b.fail("body", "an answer 204 has none: leave it out, or write status: 200")
	case r.Body != "" && r.ContentType == "":
		b.fail("content_type", "is not set: say what the body is, e.g. text/plain")
	}
	return &provider.Reply{Status: status, ContentType: r.ContentType, Body: []byte(r.Body)}
}

// unset tells whether no token was agreed on.
func (t *ChallengeToken) unset() bool {
	return t.From == "" && t.Value == "" && t.Env == "" && t.File == ""
}

// read fetches the token from where it is kept.
func (t *ChallengeToken) read(env func(string) string, p purpose) error {
	if t.unset() {
		return nil
	}
	if t.From == "" {
		return errors.New("from is not set: say where the sender shows the token, e.g. query:hub.verify_token")
	}
	s := Secret{Value: t.Value, Env: t.Env, File: t.File}
	if err := s.read(env, p); err != nil {
		return err
	}
	t.token = s.secret
	return nil
}

func itoa(i int) string { return strconv.Itoa(i) }
