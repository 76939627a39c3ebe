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

// standardWebhooks is the only provider, besides hmac, whose events and objects the configuration
// describes: its senders share the signature format and little else.
const standardWebhooks = "standardwebhooks"

// provider builds the source's provider from its settings. The error joins all problems of these
// settings. The provider is nil where none has that name, which another check reports.
func (s *Source) provider(name string) (provider.Provider, error) {
	known, ok := all.Named(s.Provider)
	if !ok {
		return nil, nil
	}
	b := &providerBuilder{path: "sources." + name}
	p := s.buildProvider(b, known)
	b.checkStoreToken(s, p)
	return p, errors.Join(b.errs...)
}

func (s *Source) buildProvider(b *providerBuilder, known provider.Provider) provider.Provider {
	if s.Provider == hmac.Name {
		return s.hmacProvider(b)
	}
	for _, key := range s.hmacOnlySettings() {
		b.fail(key, "%s has a fixed signature and response format: leave this out, or write provider: hmac", s.Provider)
	}
	if s.Provider == api.Name {
		return s.directProvider(b)
	}
	events, objects := !isZero(s.Events), len(s.Objects) > 0
	if !events && !objects {
		return known
	}
	open, ok := known.(*declared.Provider)
	if s.Provider != standardWebhooks || !ok {
		for key, is := range map[string]bool{"events": events, "objects": objects} {
			if is {
				b.fail(key, "%s defines its events and objects itself: leave this out, or write provider: hmac, "+
					"standardwebhooks or api", s.Provider)
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
		b.checkSignedTypes(s.Objects, &spec.Events, spec.Schemes)
	}
	spec.Docs = declared.Docs{Title: spec.Title}
	return declared.New(spec)
}

// hmacOnlySettings returns the keys that are set and are valid for provider: hmac only.
func (s *Source) hmacOnlySettings() []string {
	var out []string
	set := []struct {
		key string
		is  bool
	}{{"scheme", !isZero(s.Scheme)}, {"schemes", len(s.Schemes) > 0}, {"handshake", !isZero(s.Handshake)},
		{"reply", !isZero(s.Reply)}}
	for _, one := range set {
		if one.is {
			out = append(out, one.key)
		}
	}
	return out
}

func (s *Source) hmacProvider(b *providerBuilder) provider.Provider {
	var schemes []*signature.Scheme
	switch one := !isZero(s.Scheme); {
	case one && len(s.Schemes) > 0:
		b.fail("schemes", "scheme is set too: move it into schemes, or leave these out")
	case one:
		schemes = []*signature.Scheme{b.under("scheme").scheme(&s.Scheme)}
	case len(s.Schemes) == 0:
		b.fail("scheme", "is not set: write how the sender signs, e.g. scheme: {header: X-Signature, prefix: "+
			"'sha256='}; docs/senders.md has it for many senders")
	default:
		for i := range s.Schemes {
			schemes = append(schemes, b.under(fmt.Sprintf("schemes.%d", i)).scheme(&s.Schemes[i]))
		}
	}
	events := b.under("events").events(&s.Events, declared.Events{})
	requireKeyPrefix(schemes)
	objects := b.under("objects").objects(s.Objects, &events)
	b.checkSignedTypes(s.Objects, &events, schemes)
	b.under("events").rejectTokenInEvents(&events, schemes)
	b.rejectTokenInObjects(objects, schemes)
	answers := b.responses(s)
	answers.Headers = s.Events.Headers
	p := hmac.Of(schemes, events, objects, answers)
	b.checkExtendableForms(s, p)
	return p
}

// providerBuilder builds a provider from settings and collects the problems. Builders that under
// returns share one list of problems.
type providerBuilder struct {
	path string
	errs []error
	top  *providerBuilder
}

// under returns a builder for the settings below a key.
func (b *providerBuilder) under(key string) *providerBuilder {
	top := b
	if b.top != nil {
		top = b.top
	}
	return &providerBuilder{path: b.path + "." + key, top: top}
}

// problemCount returns the number of problems so far.
func (b *providerBuilder) problemCount() int {
	if b.top != nil {
		return len(b.top.errs)
	}
	return len(b.errs)
}

// fail records what is wrong with a setting and what to write.
func (b *providerBuilder) fail(key, format string, args ...any) {
	top := b
	if b.top != nil {
		top = b.top
	}
	path := b.path
	if key != "" {
		path += "." + key
	}
	top.errs = append(top.errs, &Problem{Path: path, Msg: fmt.Sprintf(format, args...)})
}

// refKinds are the kinds of references that a setting accepts.
type refKinds []signature.Kind

// refSyntax says how to write references of each kind.
var refSyntax = map[signature.Kind]string{
	signature.Body: "body", signature.Header: "header:NAME", signature.JSON: "json:PATH", signature.Form: "form:FIELD",
	signature.Query:      "query:NAME",
	signature.HTTPMethod: "method", signature.URL: "url", signature.Path: "path", signature.Timestamp: "timestamp",
	signature.Item:       "item:KEY",
	signature.SortedForm: "sorted_form", signature.Secret: "secret", signature.Root: "root:PATH",
	signature.Index:   "index",
	signature.Content: "content", signature.EventType: "type",
}

func (k refKinds) String() string {
	words := make([]string, len(k))
	for i, kind := range k {
		words[i] = refSyntax[kind]
	}
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// ref parses a reference. It records a problem and returns an empty reference if the kind is not
// allowed.
func (b *providerBuilder) ref(key, text string, allowed refKinds) signature.Ref {
	r, err := signature.ParseRef(text)
	if err != nil || !slices.Contains(allowed, r.Kind) {
		b.fail(key, "%q is not a reference that this setting accepts: write %s", text, allowed)
		return signature.Ref{}
	}
	b.checkRefPaths(key, text, r)
	return r
}

// template parses a text with references of the allowed kinds.
func (b *providerBuilder) template(key, text string, allowed refKinds) signature.Template {
	t, err := signature.ParseTemplate(text)
	if err != nil {
		b.fail(key, "%v", err)
		return signature.Template{}
	}
	b.checkBraces(key, text, allowed)
	b.checkRefPaths(key, text, t.Refs()...)
	for _, r := range t.Refs() {
		if !slices.Contains(allowed, r.Kind) {
			b.fail(key, "%q: {%s} is not allowed here: use %s in braces", text, r, allowed)
		}
	}
	return t
}

func (b *providerBuilder) templates(key string, texts StringList, allowed refKinds) []signature.Template {
	var out []signature.Template
	for _, text := range texts {
		out = append(out, b.template(key, text, allowed))
	}
	return out
}

// choose returns the value of the choice with a name. An empty name selects the first choice.
func choose[T any](b *providerBuilder, key, word string, choices ...choice[T]) T {
	words := make([]string, len(choices))
	for i, c := range choices {
		if c.name == word || i == 0 && word == "" {
			return c.value
		}
		words[i] = c.name
	}
	b.fail(key, "%q is not a known value: write one of %s", word, strings.Join(words, ", "))
	return choices[0].value
}

type choice[T any] struct {
	name  string
	value T
}
