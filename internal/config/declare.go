package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/hmac"
	"github.com/postern-gateway/postern/internal/signature"
)

// standardWebhooks is the one provider besides hmac whose senders agree on the signature and on little else.
const standardWebhooks = "standardwebhooks"

// provider is who sends to a source, made of what the source says where its provider leaves that open. The error joins what is wrong
// there; the provider is nil where there is none of its name, which has been told.
func (s *Source) provider(name string) (provider.Provider, error) {
	known, ok := all.Named(s.Provider)
	if !ok {
		return nil, nil
	}
	b := &builder{path: "sources." + name}
	p := s.declare(b, known)
	b.checkStoreToken(s, p)
	return p, errors.Join(b.bad...)
}

func (s *Source) declare(b *builder, known provider.Provider) provider.Provider {
	if s.Provider == hmac.Name {
		return s.hmac(b)
	}
	for _, key := range s.onlyHMAC() {
		b.fail(key, "%s signs in its own way and answers so: leave this out, or write provider: hmac", s.Provider)
	}
	if s.Provider == api.Name {
		return s.direct(b)
	}
	events, objects := !isZero(s.Events), len(s.Objects) > 0
	if !events && !objects {
		return known
	}
	open, ok := known.(*declared.Provider)
	if s.Provider != standardWebhooks || !ok {
		for key, is := range map[string]bool{"events": events, "objects": objects} {
			if is {
				b.fail(key, "%s names its events and objects itself: leave this out, or write provider: hmac, standardwebhooks or api", s.Provider)
			}
		}
		return known
	}
	spec := open.Spec()
	if events {
		spec.Events = b.under("events").events(&s.Events, spec.Events)
		spec.Headers = append(slices.Clone(spec.Headers), s.Events.Headers...)
	}
	if objects {
		spec.Objects = b.under("objects").objects(s.Objects, &spec.Events)
		b.signedTypes(s.Objects, &spec.Events, spec.Schemes)
	}
	spec.Docs = declared.Docs{Title: spec.Title}
	return declared.New(spec)
}

// onlyHMAC are the settings that are set and make sense for provider: hmac alone.
func (s *Source) onlyHMAC() []string {
	var out []string
	set := []struct {
		key string
		is  bool
	}{{"scheme", !isZero(s.Scheme)}, {"schemes", len(s.Schemes) > 0}, {"handshake", !isZero(s.Handshake)}, {"reply", !isZero(s.Reply)}}
	for _, one := range set {
		if one.is {
			out = append(out, one.key)
		}
	}
	return out
}

func (s *Source) hmac(b *builder) provider.Provider {
	var schemes []*signature.Scheme
	switch one := !isZero(s.Scheme); {
	case one && len(s.Schemes) > 0:
		b.fail("schemes", "scheme is set too: put it among schemes, or leave these out")
	case one:
		schemes = []*signature.Scheme{b.under("scheme").scheme(&s.Scheme)}
	case len(s.Schemes) == 0:
		b.fail("scheme", "is not set: say how the sender signs, e.g. scheme: {header: X-Signature, prefix: 'sha256='}; docs/senders.md has it for many senders")
	default:
		for i := range s.Schemes {
			schemes = append(schemes, b.under(fmt.Sprintf("schemes.%d", i)).scheme(&s.Schemes[i]))
		}
	}
	events := b.under("events").events(&s.Events, declared.Events{})
	prefixKeyPairs(schemes)
	objects := b.under("objects").objects(s.Objects, &events)
	b.signedTypes(s.Objects, &events, schemes)
	b.under("events").noToken(&events, schemes)
	b.noTokenInObjects(objects, schemes)
	answers := b.answers(s)
	answers.Headers = s.Events.Headers
	p := hmac.Of(schemes, events, objects, answers)
	b.checkExtendableForms(s, p)
	return p
}

// builder makes a provider of settings and gathers what is wrong with them. Those made by under gather in one place.
type builder struct {
	path string
	bad  []error
	top  *builder
}

// under is the builder for the settings below a key.
func (b *builder) under(key string) *builder {
	top := b
	if b.top != nil {
		top = b.top
	}
	return &builder{path: b.path + "." + key, top: top}
}

// problems is how many were noted.
func (b *builder) problems() int {
	if b.top != nil {
		return len(b.top.bad)
	}
	return len(b.bad)
}

// fail notes what is wrong with a setting and what to write.
func (b *builder) fail(key, format string, args ...any) {
	top := b
	if b.top != nil {
		top = b.top
	}
	path := b.path
	if key != "" {
		path += "." + key
	}
	top.bad = append(top.bad, &Problem{Path: path, Msg: fmt.Sprintf(format, args...)})
}

// kinds are the references that a setting may have, in the words of ParseRef.
type kinds []signature.Kind

// spelling is how references of a kind are written.
var spelling = map[signature.Kind]string{
	signature.Body: "body", signature.Header: "header:NAME", signature.JSON: "json:PATH", signature.Form: "form:FIELD", signature.Query: "query:NAME",
	signature.HTTPMethod: "method", signature.URL: "url", signature.Path: "path", signature.Timestamp: "timestamp", signature.Item: "item:KEY",
	signature.SortedForm: "sorted_form", signature.Secret: "secret", signature.Root: "root:PATH", signature.Index: "index",
	signature.Content: "content", signature.EventType: "type",
}

func (k kinds) String() string {
	words := make([]string, len(k))
	for i, kind := range k {
		words[i] = spelling[kind]
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// ref reads a reference of one of some kinds; None, and a problem, where it is none.
func (b *builder) ref(key, text string, allowed kinds) signature.Ref {
	r, err := signature.ParseRef(text)
	if err != nil || !slices.Contains(allowed, r.Kind) {
		b.fail(key, "%q names nothing that can stand here: write %s", text, allowed)
		return signature.Ref{}
	}
	b.references(key, text, r)
	return r
}

// template reads a text with references of some kinds.
func (b *builder) template(key, text string, allowed kinds) signature.Template {
	t, err := signature.ParseTemplate(text)
	if err != nil {
		b.fail(key, "%v", err)
		return signature.Template{}
	}
	b.unbraced(key, text, allowed)
	b.references(key, text, t.Refs()...)
	for _, r := range t.Refs() {
		if !slices.Contains(allowed, r.Kind) {
			b.fail(key, "%q: {%s} cannot stand here, but %s in braces", text, r, allowed)
		}
	}
	return t
}

func (b *builder) templates(key string, texts Words, allowed kinds) []signature.Template {
	var out []signature.Template
	for _, text := range texts {
		out = append(out, b.template(key, text, allowed))
	}
	return out
}

// oneOf is what a word stands for; the first where it is empty.
func oneOf[T any](b *builder, key, word string, choices ...choice[T]) T {
	words := make([]string, len(choices))
	for i, c := range choices {
		if c.word == word || i == 0 && word == "" {
			return c.is
		}
		words[i] = c.word
	}
	b.fail(key, "%q is not known: write one of %s", word, strings.Join(words, ", "))
	return choices[0].is
}

type choice[T any] struct {
	word string
	is   T
}
