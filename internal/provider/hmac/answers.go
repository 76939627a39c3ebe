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

// Answers are what a sender is told besides the receipt. None of them computes anything with a secret: a caller gets back what it
// sent, and nothing that it could use elsewhere.
type Answers struct {
	Challenge *Challenge
	Greeting  *Greeting
	// Receipt is the answer to deliveries that are stored; nil for the receipt itself.
	Receipt *provider.Reply
	// Headers are kept with each event besides those that the scheme and the events refer to.
	Headers []string
}

// Echo is a value of a request that is sent back.
type Echo struct {
	// From is where the value stands; the zero value answers with nothing.
	From signature.Ref
	// Member is the member of a JSON object under which it is answered; empty: it is answered as plain text.
	Member string
}

// Challenge is a request by GET or HEAD that asks whether the address is ours.
type Challenge struct {
	Echo Echo
	// TokenFrom is where the caller shows Token; without a token anyone is answered.
	TokenFrom signature.Ref
	Token     []byte
}

// Greeting is a signed delivery that is no event.
type Greeting struct {
	// When holds for greetings and for nothing else that the sender sends.
	When signature.Condition
	Echo Echo
}

// maxEcho is how many bytes are sent back at most; challenges are far shorter.
const maxEcho = 4096

type answer = func(*provider.Source, *provider.Delivery) *provider.Reply

func (c *Challenge) answer() answer {
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
		shown, ok := declared.Find(src, d, c.TokenFrom)
		if !ok || subtle.ConstantTimeCompare([]byte(shown), c.Token) != 1 {
			return &provider.Reply{Status: http.StatusForbidden, ContentType: "text/plain; charset=utf-8", Body: []byte("the token is not the one that is configured\n")}
		}
		return c.Echo.reply(text)
	}
}

func (g *Greeting) answer() answer {
	if g == nil {
		return nil
	}
	return func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		if is, ok := declared.Find(src, d, g.When.From); !ok || is != g.When.Is {
			return nil
		}
		text, _ := declared.Find(src, d, g.Echo.From)
		return g.Echo.reply(text)
	}
}

// reply sends a value back; nil where it is too long to be a challenge.
func (e Echo) reply(text string) *provider.Reply {
	switch {
	case len(text) > maxEcho:
		return nil
	case e.Member == "":
		return &provider.Reply{ContentType: "text/plain; charset=utf-8", Body: []byte(text)}
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body) // it escapes what a browser could take for markup
	if err := encoder.Encode(map[string]string{e.Member: text}); err != nil {
		return nil
	}
	return &provider.Reply{ContentType: "application/json", Body: bytes.TrimSpace(body.Bytes())}
}

func (a Answers) acknowledge() answer {
	if a.Receipt == nil {
		return nil
	}
	return func(*provider.Source, *provider.Delivery) *provider.Reply {
		reply := *a.Receipt
		return &reply
	}
}
