package declared

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Provider is a Spec at work.
type Provider struct{ spec Spec }

var (
	_ provider.Provider     = (*Provider)(nil)
	_ provider.Challenger   = (*Provider)(nil)
	_ provider.Greeter      = (*Provider)(nil)
	_ provider.Acknowledger = (*Provider)(nil)
)

// New is the provider of a Spec.
func New(spec Spec) *Provider { return &Provider{spec: spec} }

// Spec is what the provider was made of.
func (p *Provider) Spec() Spec { return p.spec }

// Name is the word used in configuration.
func (p *Provider) Name() string { return p.spec.Name }

// Check wants secrets that fit a scheme, and the URL where the sender signs it.
func (p *Provider) Check(src *provider.Source) error {
	if len(p.spec.Schemes) == 0 {
		return errors.New("scheme: none given; say how the sender signs")
	}
	if err := provider.CheckSecrets(src, p.spec.Schemes...); err != nil {
		return err
	}
	if src.Key != "" {
		return errors.New("key: there is no choice of " + p.spec.Name + "'s; leave it out")
	}
	if src.URL == "" && p.signsURL() {
		return errors.New("url: the sender signs the address it was given; name it (https://hooks.example/webhooks/" + src.Name + ")")
	}
	if p.spec.Check != nil {
		return p.spec.Check(src)
	}
	return nil
}

// refs are the references of all schemes.
func (p *Provider) refs() []signature.Ref {
	var out []signature.Ref
	for _, s := range p.spec.Schemes {
		out = append(append(out, s.Signature.In...), s.Message.Refs()...)
		if s.Timestamp != nil {
			out = append(out, s.Timestamp.From)
		}
		if s.Body != nil {
			out = append(out, s.Body.From)
		}
		if s.When != nil {
			out = append(out, s.When.From)
		}
		for _, other := range s.Or {
			out = append(out, other.Refs()...)
		}
	}
	return out
}

func (p *Provider) signsURL() bool {
	return slices.ContainsFunc(p.refs(), func(r signature.Ref) bool {
		return r.Kind == signature.URL || r.Kind == signature.Path || r.Kind == signature.Query
	})
}

// QueryHeader is the name under which a delivery's query is kept among its headers.
const QueryHeader = ":query"

// Headers are those that schemes and events refer to, but for tokens: they are credentials.
func (p *Provider) Headers() []string {
	out := []string{"Content-Type", "User-Agent"}
	add := func(r signature.Ref) {
		switch r.Kind {
		case signature.Header:
			out = append(out, numbered(r.Name)...)
		case signature.Query, signature.URL, signature.Path:
			out = append(out, QueryHeader)
		}
	}
	for _, r := range p.refs() {
		add(r)
	}
	for _, t := range slices.Concat(p.spec.Events.Key, p.spec.Events.Type, p.spec.Events.Account, p.spec.Events.APIVersion) {
		for _, r := range t.Refs() {
			add(r)
		}
	}
	for _, name := range p.spec.Headers {
		out = append(out, http.CanonicalHeaderKey(name))
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), p.credential)
}

// numbered are the headers that a name stands for.
func numbered(name string) []string {
	stem, ok := strings.CutSuffix(name, "#")
	if !ok {
		return []string{name}
	}
	var out []string
	for n := range maxNumbered {
		out = append(out, http.CanonicalHeaderKey(stem+strconv.Itoa(n+1)))
	}
	return out
}

// maxNumbered is how many headers are kept of those that a number tells apart.
const maxNumbered = 20

// credential tells whether a header holds a secret itself.
func (p *Provider) credential(header string) bool {
	return slices.ContainsFunc(p.spec.Schemes, func(s *signature.Scheme) bool {
		return s.Method == signature.Token && slices.ContainsFunc(s.Signature.In, func(r signature.Ref) bool {
			return r.Kind == signature.Header && standsFor(r.Name, header) || r.Kind == signature.Query && header == QueryHeader
		})
	})
}

// standsFor tells whether a name is that of a header, or of all with a number of which the header is one, kept or not.
func standsFor(name, header string) bool {
	stem, many := strings.CutSuffix(name, "#")
	if !many {
		return name == header
	}
	number, ok := strings.CutPrefix(header, http.CanonicalHeaderKey(stem))
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// Verify proves the sender by any scheme that the delivery has a signature of; of each event where each carries its own.
func (p *Provider) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	if p.spec.Refuse != nil {
		if rejection := p.spec.Refuse(src, d); rejection != nil {
			return provider.Verification{}, rejection
		}
	}
	if !p.spec.EachItem {
		return provider.Prove(src, d, p.spec.Schemes...)
	}
	return p.verifyEach(src, d)
}

// Challenge answers a request that is no delivery.
func (p *Provider) Challenge(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Challenge, src, d)
}

// Challenges tells whether any request at all could be a challenge.
func (p *Provider) Challenges() bool { return p.spec.Challenge != nil }

// Greet answers a signed request that is no event.
func (p *Provider) Greet(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Greet, src, d)
}

// Acknowledge answers a stored delivery in the sender's own way.
func (p *Provider) Acknowledge(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Acknowledge, src, d)
}

func reply(f func(*provider.Source, *provider.Delivery) *provider.Reply, src *provider.Source, d *provider.Delivery) *provider.Reply {
	if f == nil {
		return nil
	}
	return f(src, d)
}

// Samples are realistic deliveries.
func (p *Provider) Samples() []provider.Sample { return slices.Clone(p.spec.Samples) }

// Sign makes a delivery as the sender would. Headers that name the event's key or type are set where nothing else names them.
func (p *Provider) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	d := &provider.Delivery{Header: http.Header{}, Body: s.Body, ReceivedAt: at}
	d.Header.Set("Content-Type", contentType(s.Body))
	d.Header.Set("User-Agent", "Postern-Send")
	p.name(d.Header, s)
	if p.spec.Dress != nil {
		p.spec.Dress(src, d, s)
	}
	if p.spec.EachItem {
		return d, p.sealItems(src, d, at)
	}
	return d, provider.Seal(src, d, p.signer(src, d), at)
}

// signer is the scheme that a source's first secret belongs to and that can sign such a body; the first where there is none.
func (p *Provider) signer(src *provider.Source, d *provider.Delivery) *signature.Scheme {
	isForm := contentType(d.Body) != "application/json"
	for _, s := range p.spec.Schemes {
		readsForm := slices.ContainsFunc(s.Message.Refs(), func(r signature.Ref) bool { return r.Kind == signature.SortedForm || r.Kind == signature.Form })
		if (isForm || !readsForm) && len(src.Secrets) > 0 && s.CheckSecret(src.Secrets[0].Value) == nil {
			return s
		}
	}
	return p.spec.Schemes[0]
}

// Docs is the provider for people, completed from the Spec.
func (p *Provider) Docs() provider.Docs {
	d := p.spec.Docs
	d.Title = cmp.Or(d.Title, p.spec.Title)
	d.Signature = cmp.Or(d.Signature, p.signatureText())
	d.Key = cmp.Or(d.Key, keyText(&p.spec.Events))
	d.Objects = cmp.Or(d.Objects, p.objectsText())
	return d
}
