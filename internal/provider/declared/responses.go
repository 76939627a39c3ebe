package declared

import (
	"bytes"
	"cmp"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// Handshake says how Postern responds when a sender checks that the address is yours, for provider:
// hmac. No response is computed with a secret: a caller gets back only a value that it sent.
type Handshake struct {
	// Challenge is the response to an unsigned GET or HEAD request.
	Challenge *Challenge `yaml:"challenge,omitempty"`
	// Signed is the response to a signed POST that is not an event. Postern does not store that
	// request.
	Signed *SignedHandshake `yaml:"signed,omitempty"`
}

// Challenge is an unsigned GET or HEAD request.
type Challenge struct {
	// Echo is the value to send back: query:NAME or header:NAME. Write `none` if the sender expects
	// only status 200.
	Echo signature.Ref `yaml:"echo,omitempty"`
	// Member is the member of a JSON object that carries the value in the response. Leave it empty
	// for plain text.
	Member string `yaml:"as,omitempty"`
	// Token is a value that the sender must send. Set it if you configured one at the sender.
	Token *ChallengeToken `yaml:"token,omitempty"`
}

// ChallengeToken is a token that a sender must send with its challenge: its place, and exactly one
// of value, env and file.
type ChallengeToken struct {
	// From is the place where the sender puts it: query:NAME or header:NAME.
	From signature.Ref `yaml:"from,omitempty"`
	// Value is the token itself. Prefer env or file.
	Value settings.MaskedString `yaml:"value,omitempty"`
	// Env names the variable that holds the token.
	Env string `yaml:"env,omitempty"`
	// File names the file that holds the token. Postern removes one line break at its end.
	File string `yaml:"file,omitempty"`

	// Loaded is the token itself, wherever it comes from.
	Loaded []byte `yaml:"-" json:"-"`
}

// Format masks the token for every verb, so that no log line or error can contain it.
func (t ChallengeToken) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "token from "+t.From.String())
}

// SignedHandshake is a signed POST that is not an event.
type SignedHandshake struct {
	// When is the value by which Postern recognizes a handshake.
	When signature.Condition `yaml:"when,omitempty"`
	// Echo is the value to send back: json:PATH, form:FIELD, header:NAME or query:NAME. Leave it
	// empty for an empty response.
	Echo signature.Ref `yaml:"echo,omitempty"`
	// Member is the member of a JSON object that carries the value in the response. Leave it empty
	// for plain text.
	Member string `yaml:"as,omitempty"`
}

// Reply replaces the default response to a stored delivery, for provider: hmac.
type Reply struct {
	// Status is the response's status, from 200 to 299. Leave the whole section out for the default
	// response.
	Status int `yaml:"status,omitempty"`
	// ContentType is the type of the response's body.
	ContentType string `yaml:"content_type,omitempty"`
	// Body is the response's body.
	Body string `yaml:"body,omitempty"`
}

// Check reports responses that cannot work.
func (h *Handshake) Check(c settings.Checker) {
	if challenge := h.Challenge; challenge != nil {
		c := c.Under("challenge")
		switch echo := challenge.Echo; {
		case echo == (signature.Ref{}):
			c.Fail("echo", "is not set: name the value to send back (query:NAME or header:NAME), or write none")
		case echo != (signature.Ref{Name: noValue}):
			signature.CheckRef(c, "echo", echo, "query", "header")
		}
		if challenge.Token != nil {
			signature.CheckRef(c.Under("token"), "from", challenge.Token.From, "query", "header")
		}
	}
	if h.Signed == nil {
		return
	}
	c = c.Under("signed")
	if h.Signed.When.Is == "" {
		c.Under("when").Fail("is", "is not set: write the required value")
	}
	signature.CheckFields(c, h.Signed)
	if h.Signed.Echo != (signature.Ref{}) {
		signature.CheckRef(c, "echo", h.Signed.Echo, "json", "form", "header", "query")
	}
}

// noValue is the setting for a response without a value.
const noValue = "none"

// Check reports a response that would make the sender retry, or give up on, a stored delivery.
func (r *Reply) Check(c settings.Checker) {
	switch {
	case r.Status != 0 && (r.Status < 200 || r.Status > 299):
		c.Fail("status", "%d would make the sender retry, or give up on, a delivery that is stored: write one from "+
			"200 to 299", r.Status)
	case r.Body != "" && r.Status == http.StatusNoContent:
		c.Fail("body", "a response with status 204 has no body: leave it out, or write status: 200")
	case r.Body != "" && r.ContentType == "":
		c.Fail("content_type", "is not set: name the body's type, e.g. text/plain")
	}
}

// maxEcho is the maximum number of bytes that are sent back; challenges are much shorter.
const maxEcho = 4096

type responder = func(*provider.Source, *provider.Delivery) *provider.Reply

// Respond makes the provider respond as h and r say.
func (s *Spec) Respond(h Handshake, r Reply) {
	s.Challenge, s.Handshake, s.Acknowledge = h.Challenge.responder(), h.Signed.responder(), r.responder()
}

func (c *Challenge) responder() responder {
	if c == nil {
		return nil
	}
	return func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		text, ok := Find(src, d, c.Echo)
		switch {
		case c.Echo.Kind != signature.None && !ok:
			return nil
		case c.Token == nil:
			return echo(c.Member, text)
		}
		received, ok := Find(src, d, c.Token.From)
		if !ok || subtle.ConstantTimeCompare([]byte(received), c.Token.Loaded) != 1 {
			return &provider.Reply{Status: http.StatusForbidden, ContentType: "text/plain; charset=utf-8",
				Body: []byte("the token does not match the configured one\n")}
		}
		return echo(c.Member, text)
	}
}

func (h *SignedHandshake) responder() responder {
	if h == nil {
		return nil
	}
	return func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		if is, ok := Find(src, d, h.When.From); !ok || is != h.When.Is {
			return nil
		}
		text, _ := Find(src, d, h.Echo)
		return echo(h.Member, text)
	}
}

// echo sends a value back, or returns nil if it is too long to be a challenge.
func echo(member, text string) *provider.Reply {
	switch {
	case len(text) > maxEcho:
		return nil
	case member == "":
		return &provider.Reply{ContentType: "text/plain; charset=utf-8", Body: []byte(text)}
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body) // it escapes what a browser could interpret as markup
	if err := encoder.Encode(map[string]string{member: text}); err != nil {
		return nil
	}
	return &provider.Reply{ContentType: "application/json", Body: bytes.TrimSpace(body.Bytes())}
}

func (r *Reply) responder() responder {
	if *r == (Reply{}) {
		return nil
	}
	return func(*provider.Source, *provider.Delivery) *provider.Reply {
		return &provider.Reply{Status: cmp.Or(r.Status, http.StatusOK), ContentType: r.ContentType,
			Body: append([]byte(nil), r.Body...)}
	}
}
