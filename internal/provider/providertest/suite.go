// Package providertest is what every provider must pass: one suite over its own samples, run by the tests of its folder.
package providertest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// Suite is a provider under test. Provider, Source and one of Signature and InBody are needed; the rest says how the sender
// departs from the usual: one event a delivery, of the sample's type and under a key of its own, all of the body signed.
type Suite struct {
	Provider provider.Provider
	// Source is a usable source with at least two secrets that can also sign: a text that ends in signature.DemoMark is a key of any
	// form, and stands for a key pair.
	Source *provider.Source
	// Signature is the header that carries the signature, or the token; where there are several, the one that Sign sets.
	Signature string
	// InBody is the dotted path of the signature in a JSON body, or its field in a form, where it stands in no header.
	InBody string
	// Dated: a time is signed, so old and future deliveries must be refused. Unit is its resolution, 0: a second. Tolerance is
	// how old it may be, 0: provider.DefaultTolerance.
	Dated           bool
	Unit, Tolerance time.Duration
	// NoKey takes the event's key out of a delivery and signs it again; nil where the sender names no event.
	NoKey func(*testing.T, *provider.Source, *provider.Delivery)

	// Types are the types of a sample's events where they are not just the sample's own type once.
	Types map[string][]string
	// EventObjects: each event is an object of its own, so another event cannot concern the same one.
	EventObjects bool
	// ContentKeys are patterns of types of events that the sender gives no id.
	ContentKeys []string
	// BodyNotCovered says why the signature does not cover the whole body, in words that stand in the provider's Docs too. Covered
	// are the dotted paths that it covers all the same.
	BodyNotCovered string
	Covered        []string
	// Readable are names of bad bodies (badBodies lists them) that mean something to this sender.
	Readable []string
	// BadSecrets are texts that can be no secret of this sender's.
	BadSecrets []string
	// Greetings are signed requests that are no events.
	Greetings []Greeting
	// Challenges are requests by GET or HEAD that are answered; all others must not be.
	Challenges []Challenge
	// Reply is the answer to a stored delivery, nil where that is the receipt.
	Reply *provider.Reply
	// Vectors are deliveries that another program signed.
	Vectors []Vector
	// Says are bodies, with the Summary that each is read as; the type and a colon may be before it.
	Says map[string]string
	// Retries are texts of the first sample, with the text that a retry of the same event has there.
	Retries map[string]string
	// Changes: each variant of a sample shows a change of the state, but for those of Same: types whose state cannot
	// change in one second, or a second later.
	Changes bool
	Same    map[string]string
}

// Greeting is a request that is answered once its sender is proven, and never stored.
type Greeting struct {
	Name   string
	Sample provider.Sample
	Want   *provider.Reply
}

// Challenge is a request that nobody signs. Want is nil where it must not be answered.
type Challenge struct {
	Name string
	// Source is the source that is asked; nil: the suite's.
	Source *provider.Source
	Ask    *provider.Delivery
	Want   *provider.Reply
}

// now is a time of receipt with a fraction, unlike the signed times.
var now = time.Date(2026, time.July, 4, 12, 30, 15, 250e6, time.UTC)

// stranger is a secret that no source has. By its end it is a key of any form.
var stranger = provider.Secret{Name: "other", Value: []byte("another_secret" + signature.DemoMark)}

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Helper()
	if s.Unit == 0 {
		s.Unit = time.Second
	}
	if s.Tolerance == 0 {
		s.Tolerance = provider.DefaultTolerance
	}
	tests := map[string]func(*testing.T, Suite){
		"right":             right,
		"wrong secret":      wrongSecret,
		"second secret":     secondSecret,
		"empty secret":      emptySecret,
		"other source":      otherSource,
		"tampered body":     tamperedBody,
		"tampered header":   tamperedHeader,
		"tampered rest":     tamperedRest,
		"missing signature": missingSignature,
		"two signatures":    twoHeaders,
		"time":              signedTime,
		"missing key":       missingKey,
		"same event":        sameEvent,
		"bad bodies":        badBodies,
		"vary":              vary,
		"headers":           headers,
		"check":             check,
		"greetings":         greetings,
		"challenges":        challenges,
		"reply":             reply,
		"api":               reads,
		"vectors":           vectors,
		"says":              says,
		"retries":           retries,
		"vary changes":      varyChanges,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// Deliver makes a delivery of a sample, received when it was signed, or a fraction of a second later.
func (s Suite) Deliver(t *testing.T, src *provider.Source, sample provider.Sample) *provider.Delivery {
	t.Helper()
	d, err := s.Provider.Sign(src, sample, now)
	if err != nil {
		t.Fatalf("sign %s: %v", sample.Type, err)
	}
	d.ReceivedAt = now
	return d
}

func (s Suite) first(t *testing.T) *provider.Delivery {
	t.Helper()
	return s.Deliver(t, s.Source, s.Provider.Samples()[0])
}

// with is the source with other secrets.
func (s Suite) with(secrets ...provider.Secret) *provider.Source {
	src := *s.Source
	src.Secrets = secrets
	return &src
}

// Refused checks that a delivery is rejected for one of the reasons.
func (s Suite) Refused(t *testing.T, src *provider.Source, d *provider.Delivery, reasons ...provider.Reason) {
	t.Helper()
	_, err := s.Provider.Verify(src, d)
	var rejection *provider.Rejection
	if !errors.As(err, &rejection) {
		t.Fatalf("verify: error %v, want a rejection", err)
	}
	if !slices.Contains(reasons, rejection.Reason) {
		t.Errorf("verify: reason %s (%s), want one of %v", rejection.Reason, rejection.Detail, reasons)
	}
}

// types are those of a sample's events.
func (s Suite) types(sample provider.Sample) []string {
	if types, ok := s.Types[sample.Type]; ok {
		return types
	}
	return []string{sample.Type}
}

// schemes are the provider's signature schemes, as far as it shows them.
func (s Suite) schemes() []*signature.Scheme {
	if p, ok := s.Provider.(provider.Signed); ok {
		return p.Schemes()
	}
	return nil
}

// refs are what the schemes that fit read of a request.
func (s Suite) refs(fits func(*signature.Scheme) bool) []signature.Ref {
	var out []signature.Ref
	for _, scheme := range s.schemes() {
		if !fits(scheme) {
			continue
		}
		out = append(append(out, scheme.Signature.In...), scheme.Message.Refs()...)
		if scheme.Timestamp != nil {
			out = append(out, scheme.Timestamp.From)
		}
		if scheme.Body != nil {
			out = append(out, scheme.Body.From)
		}
	}
	return out
}

func anyScheme(*signature.Scheme) bool { return true }

// readsBody tells whether the body must be read before its signature can be judged.
func (s Suite) readsBody() bool {
	return s.InBody != "" || slices.ContainsFunc(s.refs(anyScheme), func(r signature.Ref) bool {
		return r.Kind == signature.JSON || r.Kind == signature.Form || r.Kind == signature.SortedForm
	})
}

// unkeyed tells whether events of a type have content keys.
func (s Suite) unkeyed(eventType string) bool { return declared.Matches(s.ContentKeys, eventType) }
