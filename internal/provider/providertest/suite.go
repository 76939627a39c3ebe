// Package providertest contains one test suite for all providers. The tests of each provider's
// package run it over the provider's own samples.
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

// Suite describes a provider under test. Provider, Source and one of Signature and InBody are
// required. The other fields say how the sender differs from the default: one event per delivery,
// of the sample's type and with a key of its own, and the whole body signed.
type Suite struct {
	Provider provider.Provider
	// Source is a usable source with at least two secrets that can also sign. A text that ends in
	// signature.DemoMark is a valid key of any form, and stands for a key pair.
	Source *provider.Source
	// Signature is the header with the signature or the token. If there are several, it is the one
	// that Sign sets.
	Signature string
	// InBody is the dotted path of the signature in a JSON body, or its form field, if it is in no
	// header.
	InBody string
	// SignsTime means that a time is signed, so that old and future deliveries must be rejected.
	// Unit is its resolution (0: a second). Tolerance is its maximum age (0:
	// provider.DefaultTolerance).
	SignsTime       bool
	Unit, Tolerance time.Duration
	// NoKey removes the event's key from a delivery and signs it again; nil if the sender sends no
	// keys.
	NoKey func(*testing.T, *provider.Source, *provider.Delivery)

	// Types are the types of a sample's events if they are not just the sample's own type once.
	Types map[string][]string
	// ObjectPerEvent means that each event is a separate object, so no other event is about the
	// same object.
	ObjectPerEvent bool
	// ContentKeys are patterns of the event types without a key.
	ContentKeys []string
	// BodyNotCovered says why the signature does not cover the whole body, in words that are also
	// in the provider's Docs. Covered are the dotted paths that it does cover.
	BodyNotCovered string
	Covered        []string
	// Readable are names of unreadable bodies that this sender can send.
	Readable []string
	// BadSecrets are texts that are no valid secret.
	BadSecrets []string
	// Handshakes are signed requests that are no events.
	Handshakes []Handshake
	// Challenges are the GET and HEAD requests that get a response; all others must not.
	Challenges []Challenge
	// Reply is the response to a stored delivery; nil for the receipt.
	Reply *provider.Reply
	// Vectors are deliveries that another program signed.
	Vectors []Vector
	// Summaries are bodies with their expected Summary, which may begin with the type and a colon.
	Summaries map[string]string
	// Retries are texts of the first sample with the replacements in a retry of the same event.
	Retries map[string]string
	// VariantsChange means that each variant of a sample changes the state. UnchangedVariants are
	// the exceptions: types whose state cannot change in one second, or a second later.
	VariantsChange    bool
	UnchangedVariants map[string]string
}

// Handshake is a request that gets a response after verification, and is never stored.
type Handshake struct {
	Name   string
	Sample provider.Sample
	Want   *provider.Reply
}

// Challenge is an unsigned request. Want is nil if it must not get a response.
type Challenge struct {
	Name string
	// Source is the requested source; nil means the suite's.
	Source  *provider.Source
	Request *provider.Delivery
	Want    *provider.Reply
}

// now is a time of receipt with a fraction, unlike signed times.
var now = time.Date(2026, time.July, 4, 12, 30, 15, 250e6, time.UTC)

// unknownSecret is a secret that no source has. Its end makes it a valid key of any form.
var unknownSecret = provider.Secret{Name: "other", Value: []byte("another_secret" + signature.DemoSuffix)}

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
		"valid signature":   testValidSignature,
		"wrong secret":      testWrongSecret,
		"second secret":     testSecondSecret,
		"empty secret":      testEmptySecret,
		"other source":      testOtherSource,
		"tampered body":     testTamperedBody,
		"tampered header":   testTamperedHeader,
		"tampered values":   testTamperedValues,
		"missing signature": testMissingSignature,
		"two signatures":    testTwoHeaders,
		"signed time":       testSignedTime,
		"missing key":       testMissingKey,
		"same event":        testSameEvent,
		"unreadable bodies": testUnreadableBodies,
		"variants":          testVariants,
		"headers":           testHeaders,
		"check":             testCheck,
		"handshakes":        testHandshakes,
		"challenges":        testChallenges,
		"acknowledgement":   testAcknowledgement,
		"api":               testReader,
		"vectors":           testVectors,
		"summaries":         testSummaries,
		"retries":           testRetries,
		"variants change":   testVariantChanges,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// Deliver makes a delivery of a sample, received when it was signed, or a fraction of a second
// later.
func (s Suite) Deliver(t *testing.T, src *provider.Source, sample provider.Sample) *provider.Delivery {
	t.Helper()
	d, err := s.Provider.Sign(src, sample, now)
	if err != nil {
		t.Fatalf("sign %s: %v", sample.Type, err)
	}
	d.ReceivedAt = now
	return d
}

func (s Suite) firstDelivery(t *testing.T) *provider.Delivery {
	t.Helper()
	return s.Deliver(t, s.Source, s.Provider.Samples()[0])
}

// withSecrets returns the source with other secrets.
func (s Suite) withSecrets(secrets ...provider.Secret) *provider.Source {
	src := *s.Source
	src.Secrets = secrets
	return &src
}

// CheckRejected checks that a delivery is rejected for one of the reasons.
func (s Suite) CheckRejected(t *testing.T, src *provider.Source, d *provider.Delivery, reasons ...provider.Reason) {
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

// types returns the types of a sample's events.
func (s Suite) types(sample provider.Sample) []string {
	if types, ok := s.Types[sample.Type]; ok {
		return types
	}
	return []string{sample.Type}
}

// schemes returns the provider's signature schemes, if it exposes them.
func (s Suite) schemes() []*signature.Scheme {
	if p, ok := s.Provider.(provider.Signed); ok {
		return p.Schemes()
	}
	return nil
}

// refs returns the references of the schemes that fit.
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

// readsBody reports whether the body must be parsed before its signature can be checked.
func (s Suite) readsBody() bool {
	return s.InBody != "" || slices.ContainsFunc(s.refs(anyScheme), func(r signature.Ref) bool {
		return r.Kind == signature.JSON || r.Kind == signature.Form || r.Kind == signature.SortedForm
	})
}

// hasContentKey reports whether events of a type have content keys.
func (s Suite) hasContentKey(eventType string) bool {
	return declared.Matches(s.ContentKeys, eventType)
}
