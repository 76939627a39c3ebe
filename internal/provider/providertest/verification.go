package providertest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

func testValidSignature(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		d := s.Deliver(t, s.Source, sample)
		v, err := s.Provider.Verify(s.Source, d)
		if err != nil {
			t.Fatalf("verify %s: %v", sample.Type, err)
		}
		if v.Secret != s.Source.Secrets[0].Name || v.Scheme == "" || s.SignsTime && v.SignedAt.IsZero() {
			t.Errorf("verify %s: verification %+v", sample.Type, v)
		}
		keys := map[string]bool{}
		var types []string
		for _, e := range s.identified(t, d) {
			if e.Key == "" || keys[e.Key] || e.ContentKey != s.hasContentKey(e.Type) {
				t.Errorf("identify %s: %+v", sample.Type, e)
			}
			keys[e.Key] = true
			types = append(types, e.Type)
		}
		if !slices.Equal(types, s.types(sample)) {
			t.Errorf("identify %s: types %q, want %q", sample.Type, types, s.types(sample))
		}
	}
}

func testWrongSecret(t *testing.T, s Suite) {
	s.CheckRejected(t, s.withSecrets(unknownSecret), s.firstDelivery(t), provider.WrongSignature)
}

func testSecondSecret(t *testing.T, s Suite) {
	d := s.Deliver(t, s.withSecrets(s.Source.Secrets[1]), s.Provider.Samples()[0])
	v, err := s.Provider.Verify(s.Source, d)
	if err != nil || v.Secret != s.Source.Secrets[1].Name {
		t.Errorf("verify with the second secret: %+v, %v", v, err)
	}
}

// testEmptySecret checks that an empty secret verifies nothing, because anyone could sign with it.
func testEmptySecret(t *testing.T, s Suite) {
	empty := s.withSecrets(provider.Secret{Name: "empty"})
	s.CheckRejected(t, empty, s.firstDelivery(t), provider.WrongSignature)
	// HMAC pads keys with zeros, so a secret of one zero byte signs like an empty one. If such a
	// text is no valid key, Sign fails.
	d, err := s.Provider.Sign(s.withSecrets(provider.Secret{Name: "short", Value: []byte{0}}), s.Provider.Samples()[0],
		now)
	if err == nil {
		d.ReceivedAt = now
		s.CheckRejected(t, empty, d, provider.WrongSignature)
	}
}

// testOtherSource checks that a source rejects a delivery for a source with another secret.
func testOtherSource(t *testing.T, s Suite) {
	d := s.Deliver(t, s.withSecrets(s.Source.Secrets[1]), s.Provider.Samples()[0])
	s.CheckRejected(t, s.withSecrets(s.Source.Secrets[0]), d, provider.WrongSignature)
}

func testTamperedBody(t *testing.T, s Suite) {
	if s.BodyNotCovered != "" {
		testTamperedParts(t, s)
		return
	}
	reasons := []provider.Reason{provider.WrongSignature}
	if s.readsBody() {
		reasons = append(reasons, provider.MalformedSignature, provider.MissingSignature)
	}
	d := s.firstDelivery(t)
	original := d.Body
	for i := range original {
		d.Body = slices.Clone(original)
		d.Body[i] ^= 1
		s.CheckRejected(t, s.Source, d, reasons...)
	}
	bodies := [][]byte{nil, original[:len(original)-1]}
	if s.InBody == "" { // white space around a signed document may not be signed
		bodies = append(bodies, append(slices.Clone(original), '\n'))
	}
	for _, d.Body = range bodies {
		s.CheckRejected(t, s.Source, d, reasons...)
	}
}

// testTamperedParts checks that the signed part of the body cannot be changed. The provider's
// documents must say that the rest can be.
func testTamperedParts(t *testing.T, s Suite) {
	p, ok := s.Provider.(provider.Documented)
	if !ok || !strings.Contains(p.Docs().Setup+strings.Join(p.Docs().Unconfirmed, "\n"), s.BodyNotCovered) {
		t.Errorf("the documents do not say: %s", s.BodyNotCovered)
	}
	d := s.firstDelivery(t)
	original := d.Body
	for _, path := range s.Covered {
		d.Body = changed(t, original, path, alter)
		s.CheckRejected(t, s.Source, d, provider.WrongSignature, provider.MalformedSignature)
	}
	d.Body = addMember(t, original)
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Errorf("the whole body is signed, although BodyNotCovered is set: %v", err)
	}
}

func testTamperedHeader(t *testing.T, s Suite) {
	d := s.firstDelivery(t)
	original := s.signatureOf(t, d)
	for i := range original {
		value := []byte(original)
		value[i] ^= 1
		s.setSignature(t, d, string(value))
		s.CheckRejected(t, s.Source, d, provider.WrongSignature, provider.MalformedSignature, provider.StaleTimestamp,
			provider.MissingSignature)
	}
}

func (s Suite) signatureOf(t *testing.T, d *provider.Delivery) string {
	t.Helper()
	value := d.Header.Get(s.Signature)
	if s.InBody != "" {
		value, _ = fieldOf(t, d.Body, s.InBody).(string)
	}
	if value == "" {
		t.Fatalf("a signed delivery has no signature in %s%s", s.Signature, s.InBody)
	}
	return value
}

func (s Suite) setSignature(t *testing.T, d *provider.Delivery, value string) {
	t.Helper()
	if s.InBody == "" {
		d.Header[http.CanonicalHeaderKey(s.Signature)] = []string{value}
		return
	}
	d.Body = changed(t, d.Body, s.InBody, func(any) any { return value })
}

// testTamperedValues changes the other signed values, one by one: further headers, the address, its
// query and the method. Each change must be rejected.
func testTamperedValues(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		d := s.Deliver(t, s.Source, sample)
		v, err := s.Provider.Verify(s.Source, d)
		if err != nil {
			t.Fatal(err)
		}
		for _, ref := range s.refs(func(scheme *signature.Scheme) bool {
			return scheme.Name == v.Scheme && scheme.Method != signature.Token
		}) {
			s.tamper(t, d, ref)
		}
	}
}

func (s Suite) tamper(t *testing.T, d *provider.Delivery, ref signature.Ref) {
	t.Helper()
	checkRejected := func(src *provider.Source, d provider.Delivery) {
		t.Helper()
		s.CheckRejected(t, src, &d, provider.WrongSignature, provider.MalformedSignature, provider.MissingSignature)
	}
	forged, src := *d, *s.Source
	switch ref.Kind {
	case signature.Header:
		value := d.Header.Get(ref.Name)
		if value == "" || ref.Name == http.CanonicalHeaderKey(s.Signature) {
			return
		}
		for _, other := range []string{"", "0" + value, value[:len(value)-1] + string(rune(value[len(value)-1]^1))} {
			forged.Header = d.Header.Clone()
			forged.Header.Set(ref.Name, other)
			checkRejected(&src, forged)
		}
	case signature.URL, signature.Path, signature.Query:
		src.URL = strings.Replace(s.Source.URL, "://", "://other.", 1)
		if ref.Kind == signature.Path {
			src.URL = s.Source.URL + "/other"
		}
		if ref.Kind != signature.Query {
			checkRejected(&src, forged)
		}
		if d.Query != "" || ref.Kind == signature.URL {
			forged.Query = d.Query + "added=later"
			checkRejected(s.Source, forged)
		}
		if d.Query != "" {
			forged.Query = ""
			checkRejected(s.Source, forged)
		}
	case signature.HTTPMethod:
		forged.Method = http.MethodPut
		checkRejected(&src, forged)
	}
}

func testMissingSignature(t *testing.T, s Suite) {
	d := s.firstDelivery(t)
	s.setSignature(t, d, "")
	s.CheckRejected(t, s.Source, d, provider.MissingSignature)
	if s.InBody == "" {
		d.Header.Del(s.Signature)
	} else {
		d.Body = changed(t, d.Body, s.InBody, nil)
	}
	s.CheckRejected(t, s.Source, d, provider.MissingSignature)
}

// testTwoHeaders checks that two signature headers are rejected, because a proxy could use one of
// them and the gateway the other.
func testTwoHeaders(t *testing.T, s Suite) {
	if s.InBody != "" {
		return
	}
	d := s.firstDelivery(t)
	d.Header.Add(s.Signature, d.Header.Get(s.Signature))
	s.CheckRejected(t, s.Source, d, provider.MalformedSignature)
}

func testSignedTime(t *testing.T, s Suite) {
	d := s.firstDelivery(t)
	signedAt := now.Truncate(s.Unit)
	ages := []time.Duration{-s.Tolerance, 0, s.Tolerance}
	if !s.SignsTime {
		ages = []time.Duration{-10 * 365 * 24 * time.Hour, 0, 10 * 365 * 24 * time.Hour}
	}
	for _, age := range ages {
		d.ReceivedAt = signedAt.Add(age)
		if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Errorf("received %s after signing: %v", age, err)
		}
	}
	if !s.SignsTime {
		return
	}
	d.ReceivedAt = signedAt.Add(s.Tolerance + time.Millisecond)
	s.CheckRejected(t, s.Source, d, provider.StaleTimestamp)
	d.ReceivedAt = signedAt.Add(-s.Tolerance - time.Millisecond)
	s.CheckRejected(t, s.Source, d, provider.FutureTimestamp)
	narrow := *s.Source
	narrow.Tolerance = time.Second
	d.ReceivedAt = signedAt.Add(2 * time.Second)
	s.CheckRejected(t, &narrow, d, provider.StaleTimestamp)
}
