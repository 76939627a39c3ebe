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

// Provider is a provider that a Spec describes.
type Provider struct{ spec Spec }

var (
	_ provider.Provider     = (*Provider)(nil)
	_ provider.Challenger   = (*Provider)(nil)
	_ provider.Handshaker   = (*Provider)(nil)
	_ provider.Acknowledger = (*Provider)(nil)
)

// New returns the provider of a Spec.
func New(spec Spec) *Provider { return &Provider{spec: spec} }

// Spec returns the Spec of the provider.
func (p *Provider) Spec() Spec { return p.spec }

// Name returns the provider's name in the configuration.
func (p *Provider) Name() string { return p.spec.Name }

// Check requires secrets that fit a scheme, and the URL if the sender signs it.
func (p *Provider) Check(src *provider.Source) error {
	if len(p.spec.Schemes) == 0 {
		return errors.New("scheme: not set; say how the sender signs")
	}
	if err := provider.CheckSecrets(src, p.spec.Schemes...); err != nil {
		return err
	}
	if src.Key != "" {
		return errors.New("key: provider " + p.spec.Name + " has no choice of keys; leave it out")
	}
	if src.URL == "" && p.signsURL() {
		return errors.New("url: the sender signs the address that was entered there; set it " +
			"(https://hooks.example/webhooks/" + src.Name + ")")
	}
	if p.spec.Check != nil {
		return p.spec.Check(src)
	}
	return nil
}

// schemeRefs returns the references of all schemes.
func (p *Provider) schemeRefs() []signature.Ref {
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
	return slices.ContainsFunc(p.schemeRefs(), func(r signature.Ref) bool {
		return r.Kind == signature.URL || r.Kind == signature.Path || r.Kind == signature.Query
	})
}

// QueryHeader is the name under which a delivery's query is stored with its headers.
const QueryHeader = ":query"

// Headers returns the headers that schemes and events refer to, except tokens, because they are
// credentials.
func (p *Provider) Headers() []string {
	out := []string{"Content-Type", "User-Agent"}
	add := func(r signature.Ref) {
		switch r.Kind {
		case signature.Header:
			out = append(out, expandNumbered(r.Name)...)
		case signature.Query, signature.URL, signature.Path:
			out = append(out, QueryHeader)
		}
	}
	for _, r := range p.schemeRefs() {
		add(r)
	}
	for _, t := range slices.Concat(p.spec.Events.Key, p.spec.Events.Type, p.spec.Events.Account,
		p.spec.Events.APIVersion) {
		for _, r := range t.Refs() {
			add(r)
		}
	}
	for _, name := range slices.Concat(p.spec.Headers, p.spec.Events.Headers) {
		out = append(out, http.CanonicalHeaderKey(name))
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), p.isCredential)
}

// expandNumbered returns the headers that a name with # stands for.
func expandNumbered(name string) []string {
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

// maxNumbered is how many numbered headers are stored.
const maxNumbered = 20

// isCredential reports whether a header contains a secret itself.
func (p *Provider) isCredential(header string) bool {
	return slices.ContainsFunc(p.spec.Schemes, func(s *signature.Scheme) bool {
		return s.Method == signature.Token && slices.ContainsFunc(s.Signature.In, func(r signature.Ref) bool {
			return r.Kind == signature.Header && matchesHeader(r.Name, header) || r.Kind == signature.Query &&
				header == QueryHeader
		})
	})
}

// matchesHeader reports whether a name is that of a header, or of a numbered group that contains
// the header.
func matchesHeader(name, header string) bool {
	stem, many := strings.CutSuffix(name, "#")
	if !many {
		return name == header
	}
	number, ok := strings.CutPrefix(header, http.CanonicalHeaderKey(stem))
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// Verify verifies the delivery with any scheme that it has a signature of, or each event if each is
// signed.
func (p *Provider) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	if p.spec.Reject != nil {
		if rejection := p.spec.Reject(src, d); rejection != nil {
			return provider.Verification{}, rejection
		}
	}
	if !p.spec.SignedItems {
		return provider.VerifySchemes(src, d, p.spec.Schemes...)
	}
	return p.verifyEach(src, d)
}

// Challenge responds to an unsigned request that is no delivery.
func (p *Provider) Challenge(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Challenge, src, d)
}

// Challenges reports whether the provider responds to challenges.
func (p *Provider) Challenges() bool { return p.spec.Challenge != nil }

// Handshake responds to a signed request that is no event.
func (p *Provider) Handshake(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Handshake, src, d)
}

// Acknowledge returns the sender's own response to a stored delivery.
func (p *Provider) Acknowledge(src *provider.Source, d *provider.Delivery) *provider.Reply {
	return reply(p.spec.Acknowledge, src, d)
}

func reply(f func(*provider.Source, *provider.Delivery) *provider.Reply, src *provider.Source,
	d *provider.Delivery) *provider.Reply {
	if f == nil {
		return nil
	}
	return f(src, d)
}

// Samples returns realistic deliveries.
func (p *Provider) Samples() []provider.Sample { return slices.Clone(p.spec.Samples) }

// Sign makes a delivery as the sender does. It sets the headers with the event's key and type if
// nothing else contains them.
func (p *Provider) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	d := &provider.Delivery{Header: http.Header{}, Body: s.Body, ReceivedAt: at}
	d.Header.Set("Content-Type", contentType(s.Body))
	d.Header.Set("User-Agent", "Postern-Send")
	p.setNameHeaders(d.Header, s)
	if p.spec.SetHeaders != nil {
		p.spec.SetHeaders(src, d, s)
	}
	if p.spec.SignedItems {
		return d, p.signItems(src, d, at)
	}
	return d, provider.SignDelivery(src, d, p.signingScheme(src, d), at)
}

// signingScheme returns the first scheme that fits the source's first secret and can sign such a
// body, or else the first scheme.
func (p *Provider) signingScheme(src *provider.Source, d *provider.Delivery) *signature.Scheme {
	isForm := contentType(d.Body) != "application/json"
	for _, s := range p.spec.Schemes {
		readsForm := slices.ContainsFunc(s.Message.Refs(),
			func(r signature.Ref) bool { return r.Kind == signature.SortedForm || r.Kind == signature.Form })
		if (isForm || !readsForm) && len(src.Secrets) > 0 && s.CheckSecret(src.Secrets[0].Value) == nil {
			return s
		}
	}
	return p.spec.Schemes[0]
}

// Docs returns the description for people, completed from the Spec.
func (p *Provider) Docs() provider.Docs {
	d := p.spec.Docs
	d.Title = cmp.Or(d.Title, p.spec.Title)
	d.Signature = cmp.Or(d.Signature, p.signatureText())
	d.Key = cmp.Or(d.Key, keyText(&p.spec.Events))
	d.Objects = cmp.Or(d.Objects, p.objectsText())
	return d
}
