package hmac

import (
	"bytes"
	"crypto/subtle"
	"encoding/json"
	"net/http"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Responses are the responses that a sender gets instead of the receipt. None of them is computed
// with a secret: a caller gets back only a value that it sent.
type Responses struct {
	Challenge *Challenge
	Handshake *Handshake
	// Receipt is the response to a stored delivery; nil for the receipt itself.
	Receipt *provider.Reply
	// Headers are stored with each event, in addition to those that the scheme and the events refer
	// to.
	Headers []string
}

// Echo is a value of a request that is sent back.
type Echo struct {
	// From is the place of the value; the zero value sends back nothing.
	From signature.Ref
	// Member is the member of a JSON object that contains the value in the response. Empty means
	// plain text.
	Member string
}

// Challenge is a GET or HEAD request that checks whether the address belongs to the user.
type Challenge struct {
	Echo Echo
	// TokenFrom is the place of Token in the request. Without a token every caller gets a response.
	TokenFrom signature.Ref
	Token     []byte
}

// Handshake is a signed delivery that is no event.
type Handshake struct {
	// When holds for handshakes and for nothing else that the sender sends.
	When signature.Condition
	Echo Echo
}

// maxEcho is the maximum number of bytes that are sent back; challenges are much shorter.
const maxEcho = 4096

type responder = func(*provider.Source, *provider.Delivery) *provider.Reply

func (c *Challenge) responder() responder {
	if c == nil {
		return nil
	}
	return func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		text, ok := declared.Find(src, d, c.Echo.From)
		switch {
		case c.Echo.From.Kind != signature.None && !ok:
			return nil
		case c.TokenFrom.Kind == signature.None:
			return c.Echo.reply(text)
		}
		received, ok := declared.Find(src, d, c.TokenFrom)
		if !ok || subtle.ConstantTimeCompare([]byte(received), c.Token) != 1 {
			return &provider.Reply{Status: http.StatusForbidden, ContentType: "text/plain; charset=utf-8",
				Body: []byte("the token does not match the configured one\n")}
		}
		return c.Echo.reply(text)
	}
}

func (h *Handshake) responder() responder {
	if h == nil {
		return nil
	}
	return func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		if is, ok := declared.Find(src, d, h.When.From); !ok || is != h.When.Is {
			return nil
		}
		text, _ := declared.Find(src, d, h.Echo.From)
		return h.Echo.reply(text)
	}
}

// reply sends a value back, or returns nil if it is too long to be a challenge.
func (e Echo) reply(text string) *provider.Reply {
	switch {
	case len(text) > maxEcho:
		return nil
	case e.Member == "":
		return &provider.Reply{ContentType: "text/plain; charset=utf-8", Body: []byte(text)}
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body) // it escapes what a browser could interpret as markup
	if err := encoder.Encode(map[string]string{e.Member: text}); err != nil {
		return nil
	}
	return &provider.Reply{ContentType: "application/json", Body: bytes.TrimSpace(body.Bytes())}
}

func (r Responses) acknowledge() responder {
	if r.Receipt == nil {
		return nil
	}
	return func(*provider.Source, *provider.Delivery) *provider.Reply {
		reply := *r.Receipt
		return &reply
	}
}
