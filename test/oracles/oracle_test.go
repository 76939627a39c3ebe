// Package oracles holds Postern against the official SDKs of the senders it takes: what they sign
// is accepted here, what is signed here they accept, and what is changed both refuse. It is a
// module of its own, so that no SDK is among the product's modules. SDKs for Node are asked through
// one child process; node/package.json lists them.
package oracles_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// oracle is an SDK beside the source that takes the same sender's deliveries here.
type oracle struct {
	// sdk is the module and what of it is asked.
	sdk string
	// node: it is asked through the child process.
	node bool
	// source is what Postern takes such deliveries with, under a secret.
	source func(t rapid.TB, secret string) *source
	// keys makes secrets.
	keys *rapid.Generator[keys]
	// body makes bodies that the sender may send and the SDK can read.
	body *rapid.Generator[string]
	// queries are those of the delivery's address; nil: it has none.
	queries []string
	// dress adds what the SDK wants to see besides the signature; nil: nothing.
	dress func(d *provider.Delivery)

	// sign signs by the SDK; nil where it has only the other half.
	sign func(secret, url string, d *provider.Delivery, at time.Time) error
	// verify asks the SDK whether it accepts a delivery that comes now.
	verify func(secret, url string, d *provider.Delivery) bool

	// headers are those in which the signature, which comes first, or a part of what it covers
	// stands.
	headers []string
	// bodyOpen: the body is not signed as it is. tamper changes what of it is signed; nil where
	// that is nothing.
	bodyOpen bool
	tamper   func(t *rapid.T, body string) string
	// url: the address is signed.
	url bool
	// same tells whether two bodies are the same to the signature; nil: if their bytes are.
	same func(a, b string) bool

	// theirs is how far the SDK lets a signed time lie from now, and ours how far Postern does; nil
	// where none is signed.
	theirs, ours *window
	// because is why Postern's window is wider than the SDK's, where it is.
	because string
	// differs is what one side takes and the other refuses, with reasons.
	differs []difference
}

// window is how far a signed time may lie from now.
type window struct{ past, future time.Duration }

// forever is a window that has no end.
const forever = 100 * 365 * 24 * time.Hour

// keys are what the sender signs with, and what receivers verify with.
type keys struct{ signer, verifier string }

// source is a provider with a configured source.
type source struct {
	provider.Provider
	src *provider.Source
}

// address is what senders that sign it were given.
const address = "https://hooks.example/webhooks/shop"

// preset is a source of a provider that has a folder of its own.
func preset(name string) func(rapid.TB, string) *source {
	return func(t rapid.TB, secret string) *source {
		t.Helper()
		p, ok := all.Named(name)
		if !ok {
			t.Fatalf("no provider %s", name)
		}
		src := &provider.Source{Name: name, URL: address,
			Secrets: []provider.Secret{{Name: "live", Value: []byte(secret)}}}
		if name == "shopify" {
			src.Accounts = []string{"*"}
		}
		if err := p.Check(src); err != nil {
			t.Fatalf("%s with %q: %v", name, secret, err)
		}
		return &source{p, src}
	}
}

// declared is a source of a sender that has only a configuration: that of the hmac provider's own
// tests.
func declared(name string) func(rapid.TB, string) *source {
	return func(t rapid.TB, secret string) *source {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("..", "..", "internal", "provider", "hmac", "testdata", "senders",
			name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return configured(t, string(text), secret)
	}
}

// read are the sources of configurations that were read. To read one for each secret would take
// longer than all else.
var read sync.Map

// configured is the one source of a configuration.
func configured(t rapid.TB, text, secret string) *source {
	t.Helper()
	if known, ok := read.Load(text); ok {
		s := known.(source)
		src := *s.src
		src.Secrets = []provider.Secret{{Name: "live", Value: []byte(secret)}}
		return &source{s.Provider, &src}
	}
	c, err := config.Parse([]byte("database: {url: postgres://x}\n"+text), func(variable string) string {
		if strings.HasSuffix(variable, "_SECRET") {
			return secret
		}
		return ""
	})
	if err != nil {
		t.Fatalf("with %q: %v", secret, err)
	}
	e := c.Endpoints()[0]
	src := *e.Source
	read.Store(text, source{e.Provider, &src})
	return &source{e.Provider, e.Source}
}

// signedHere is a delivery signed by Postern.
func (o *oracle) signedHere(t rapid.TB, k keys, body, query string, at time.Time) *provider.Delivery {
	t.Helper()
	s := o.source(t, k.signer)
	if query != "" {
		s.src.URL = withQuery(address, query)
	}
	d, err := s.Sign(s.src, provider.Sample{Type: "push", Body: []byte(body)}, at)
	if err != nil {
		t.Fatalf("sign: %v", err)
	}
	if query != "" {
		d.Query = query
	}
	if o.dress != nil {
		o.dress(d)
	}
	return d
}

// signedThere is a delivery signed by the SDK.
func (o *oracle) signedThere(t rapid.TB, k keys, body, query string, at time.Time) *provider.Delivery {
	t.Helper()
	d := &provider.Delivery{Header: http.Header{"Content-Type": {"application/json"}}, Query: query, Body: []byte(body)}
	if o.dress != nil {
		o.dress(d)
	}
	if err := o.sign(k.signer, withQuery(address, query), d, at); err != nil {
		t.Fatalf("%s: sign: %v", o.sdk, err)
	}
	return d
}

// verdict is whether a delivery that comes now is accepted.
type verdict struct{ here, there bool }

// ask asks both sides.
func (o *oracle) ask(t rapid.TB, k keys, base string, d *provider.Delivery) verdict {
	t.Helper()
	s := o.source(t, k.verifier)
	s.src.URL = base
	d.ReceivedAt = time.Now()
	_, err := s.Verify(s.src, copied(d))
	return verdict{err == nil, o.verify(k.verifier, withQuery(base, d.Query), copied(d))}
}

// copied is a delivery of its own, so that what is done to it is done to no other.
func copied(d *provider.Delivery) *provider.Delivery {
	out := *d
	out.Header, out.Body = d.Header.Clone(), bytes.Clone(d.Body)
	return &out
}

func withQuery(base, query string) string {
	if query == "" {
		return base
	}
	return base + "?" + query
}

// request is a delivery as an SDK takes it.
func request(d *provider.Delivery) *http.Request {
	r, err := http.NewRequest(http.MethodPost, withQuery(address, d.Query), bytes.NewReader(d.Body))
	if err != nil {
		panic(err) // the address above is none
	}
	r.Header = d.Header.Clone()
	return r
}

func shown(d *provider.Delivery) string {
	return fmt.Sprintf("query %q, headers %v, body %q", d.Query, d.Header, d.Body)
}
