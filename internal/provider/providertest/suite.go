// Package providertest is what every provider must pass: one suite over its own samples, run by the tests of its folder.
package providertest

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// Suite is a provider under test.
type Suite struct {
	Provider provider.Provider
	// Source is a usable source with at least two secrets.
	Source *provider.Source
	// Signature is the header that carries the signature.
	Signature string
	// Dated: a time is signed, so old and future deliveries must be refused.
	Dated bool
	// NoKey takes the event's key out of a delivery and signs it again.
	NoKey func(*testing.T, *provider.Source, *provider.Delivery)
}

// now is a time of receipt with a fraction, unlike the signed times.
var now = time.Date(2026, time.July, 4, 12, 30, 15, 250e6, time.UTC)

// Run runs the suite.
func Run(t *testing.T, s Suite) {
	t.Helper()
	tests := map[string]func(*testing.T, Suite){
		"right":             right,
		"wrong secret":      wrongSecret,
		"second secret":     secondSecret,
		"empty secret":      emptySecret,
		"other source":      otherSource,
		"tampered body":     tamperedBody,
		"tampered header":   tamperedHeader,
		"missing signature": missingSignature,
		"two signatures":    twoHeaders,
		"time":              signedTime,
		"missing key":       missingKey,
		"same event":        sameEvent,
		"bad bodies":        badBodies,
		"vary":              vary,
		"headers":           headers,
		"check":             check,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// signed makes a delivery of a sample.
func (s Suite) signed(t *testing.T, src *provider.Source, sample provider.Sample) *provider.Delivery {
	t.Helper()
	d, err := s.Provider.Sign(src, sample, now)
	if err != nil {
		t.Fatalf("sign %s: %v", sample.Type, err)
	}
	d.ReceivedAt = now
	return d
}

func (s Suite) first(t *testing.T) *provider.Delivery {
	return s.signed(t, s.Source, s.Provider.Samples()[0])
}

// with is the source with other secrets.
func (s Suite) with(secrets ...provider.Secret) *provider.Source {
	src := *s.Source
	src.Secrets = secrets
	return &src
}

// refused checks that a delivery is rejected for one of the reasons.
func (s Suite) refused(t *testing.T, src *provider.Source, d *provider.Delivery, reasons ...provider.Reason) {
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

func right(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		d := s.signed(t, s.Source, sample)
		v, err := s.Provider.Verify(s.Source, d)
		if err != nil {
			t.Fatalf("verify %s: %v", sample.Type, err)
		}
		if v.Secret != s.Source.Secrets[0].Name || v.Scheme == "" || v.SignedAt.IsZero() == s.Dated {
			t.Errorf("verify %s: verification %+v", sample.Type, v)
		}
		events, err := s.Provider.Identify(s.Source, d)
		if err != nil || len(events) != 1 || events[0].Type != sample.Type || events[0].Key == "" || events[0].ContentKey {
			t.Errorf("identify %s: %+v, %v", sample.Type, events, err)
		}
	}
}

func wrongSecret(t *testing.T, s Suite) {
	s.refused(t, s.with(provider.Secret{Name: "other", Value: []byte("another secret")}), s.first(t), provider.WrongSignature)
}

func secondSecret(t *testing.T, s Suite) {
	d := s.signed(t, s.with(s.Source.Secrets[1]), s.Provider.Samples()[0])
	v, err := s.Provider.Verify(s.Source, d)
	if err != nil || v.Secret != s.Source.Secrets[1].Name {
		t.Errorf("verify with the second secret: %+v, %v", v, err)
	}
}

// emptySecret: whoever knows that a secret is empty could sign.
func emptySecret(t *testing.T, s Suite) {
	d := s.signed(t, s.with(provider.Secret{Name: "short", Value: []byte{0}}), s.Provider.Samples()[0])
	// HMAC pads keys with zeros, so a secret of one zero byte signs like an empty one.
	s.refused(t, s.with(provider.Secret{Name: "empty"}), d, provider.WrongSignature)
}

func otherSource(t *testing.T, s Suite) {
	d := s.signed(t, s.with(s.Source.Secrets[1]), s.Provider.Samples()[0])
	s.refused(t, s.with(s.Source.Secrets[0]), d, provider.WrongSignature)
}

func tamperedBody(t *testing.T, s Suite) {
	d := s.first(t)
	original := d.Body
	for i := range original {
		d.Body = slices.Clone(original)
		d.Body[i] ^= 1
		s.refused(t, s.Source, d, provider.WrongSignature)
	}
	for _, body := range [][]byte{nil, original[:len(original)-1], append(slices.Clone(original), '\n')} {
		d.Body = body
		s.refused(t, s.Source, d, provider.WrongSignature)
	}
}

func tamperedHeader(t *testing.T, s Suite) {
	d := s.first(t)
	original := d.Header.Get(s.Signature)
	for i := range original {
		value := []byte(original)
		value[i] ^= 1
		d.Header[http.CanonicalHeaderKey(s.Signature)] = []string{string(value)}
		s.refused(t, s.Source, d, provider.WrongSignature, provider.MalformedSignature, provider.StaleTimestamp)
	}
}

func missingSignature(t *testing.T, s Suite) {
	d := s.first(t)
	d.Header.Set(s.Signature, "")
	s.refused(t, s.Source, d, provider.MissingSignature)
	d.Header.Del(s.Signature)
	s.refused(t, s.Source, d, provider.MissingSignature)
}

func twoHeaders(t *testing.T, s Suite) {
	d := s.first(t)
	d.Header.Add(s.Signature, d.Header.Get(s.Signature))
	s.refused(t, s.Source, d, provider.MalformedSignature)
}

func signedTime(t *testing.T, s Suite) {
	d := s.first(t)
	signedAt := now.Truncate(time.Second)
	for _, age := range []time.Duration{-provider.DefaultTolerance, 0, provider.DefaultTolerance} {
		d.ReceivedAt = signedAt.Add(age)
		if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Errorf("received %s after signing: %v", age, err)
		}
	}
	if !s.Dated {
		return
	}
	d.ReceivedAt = signedAt.Add(provider.DefaultTolerance + time.Millisecond)
	s.refused(t, s.Source, d, provider.StaleTimestamp)
	d.ReceivedAt = signedAt.Add(-provider.DefaultTolerance - time.Millisecond)
	s.refused(t, s.Source, d, provider.FutureTimestamp)
	narrow := *s.Source
	narrow.Tolerance = time.Second
	d.ReceivedAt = signedAt.Add(2 * time.Second)
	s.refused(t, &narrow, d, provider.StaleTimestamp)
}

func missingKey(t *testing.T, s Suite) {
	d := s.first(t)
	s.NoKey(t, s.Source, d)
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatal(err)
	}
	a := s.identified(t, d)
	if !a.ContentKey || a.Key == "" {
		t.Errorf("identify without key: %+v", a)
	}
	d.Body = append(slices.Clone(d.Body), ' ')
	if b := s.identified(t, d); b.Key == a.Key {
		t.Errorf("two bodies have one content key %s", b.Key)
	}
}

func (s Suite) identified(t *testing.T, d *provider.Delivery) provider.Event {
	t.Helper()
	events, err := s.Provider.Identify(s.Source, d)
	if err != nil || len(events) != 1 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events[0]
}

// sameEvent: a delivery sent again, signed anew, is the same event.
func sameEvent(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		again, err := s.Provider.Sign(s.with(s.Source.Secrets[1]), sample, now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(s.identified(t, s.signed(t, s.Source, sample)), s.identified(t, again)); diff != "" {
			t.Errorf("%s sent again is another event:\n%s", sample.Type, diff)
		}
	}
}

func headers(t *testing.T, s Suite) {
	names := s.Provider.Headers()
	for _, name := range names {
		if http.CanonicalHeaderKey(name) != name {
			t.Errorf("header %q is not canonical", name)
		}
	}
	if !slices.Contains(names, http.CanonicalHeaderKey(s.Signature)) {
		t.Errorf("headers %v lack %s: a rejection could not be verified again", names, s.Signature)
	}
}

func check(t *testing.T, s Suite) {
	if err := s.Provider.Check(s.Source); err != nil {
		t.Errorf("check a usable source: %v", err)
	}
	if s.Provider.Check(s.with()) == nil || s.Provider.Check(s.with(provider.Secret{Name: "empty"})) == nil {
		t.Error("a source without a secret passes")
	}
	other := *s.Source
	other.Key = "no such choice"
	if s.Provider.Check(&other) == nil {
		t.Error("an unknown key choice passes")
	}
}
