package provider

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/signature"
)

// DefaultTolerance is the maximum difference between a signed time and the time of receipt, unless
// the source or the scheme sets another.
const DefaultTolerance = signature.DefaultTolerance

// VerifySchemes verifies a delivery with any of the schemes that it has a signature of. Several
// schemes may use one header, and only trying shows which of them a secret belongs to. If none
// verifies the delivery, the error is the most specific one: a right signature with a wrong time
// before a wrong signature, and that before an unreadable one. If the delivery has no signature,
// the first scheme says what is missing, unless another scheme finds it unreadable. The error is a
// *Rejection.
func VerifySchemes(src *Source, d *Delivery, schemes ...*signature.Scheme) (Verification, error) {
	var few [4][]byte
	secrets := few[:0]
	for _, secret := range src.Secrets {
		secrets = append(secrets, secret.Value)
	}
	r := SignatureRequest(src, d)
	// a scheme verifies only a delivery with a signature, and no other error can be more specific
	if len(schemes) == 1 {
		m, err := schemes[0].Verify(secrets, r, src.Tolerance)
		if err != nil {
			return Verification{}, newRejection(err)
		}
		return newVerification(src, schemes[0], m), nil
	}
	absent := func(s *signature.Scheme) bool { return !s.HasSignature(r) }
	present := schemes
	if slices.ContainsFunc(schemes, absent) {
		present = slices.DeleteFunc(slices.Clone(schemes), absent)
	}
	if len(present) > 0 {
		schemes = present
	}
	var mostSpecific *Rejection
	for _, s := range schemes {
		m, err := s.Verify(secrets, r, src.Tolerance)
		if err == nil && len(present) == 0 {
			err = errors.New("the delivery does not say that it is signed this way")
		}
		if err == nil {
			return newVerification(src, s, m), nil
		}
		if each := newRejection(err); mostSpecific == nil || each.specificity() > mostSpecific.specificity() {
			mostSpecific = each
		}
	}
	return Verification{}, mostSpecific
}

func newVerification(src *Source, s *signature.Scheme, m signature.Match) Verification {
	return Verification{Scheme: s.Name, Secret: src.Secrets[m.Secret].Name, SignedAt: m.SignedAt}
}

// specificity ranks rejections: of several, the one with the greatest value is reported.
func (r *Rejection) specificity() int {
	return slices.Index([]Reason{MissingSignature, MalformedSignature, WrongSignature, FutureTimestamp, StaleTimestamp},
		r.Reason)
}

// SignatureRequest returns the parts of a delivery that a signature scheme reads. The URL is the
// configured one. If it has no query, the delivery's query is added.
func SignatureRequest(src *Source, d *Delivery) signature.Request {
	url := src.URL
	if url != "" && d.Query != "" && !strings.Contains(url, "?") {
		url += "?" + d.Query
	}
	return signature.Request{Method: d.Method, URL: url, Header: d.Header, Body: d.Body, ReceivedAt: d.ReceivedAt,
		Keys: src.Keys}
}

// SignDelivery signs a delivery as the provider does, with the source's first secret.
func SignDelivery(src *Source, d *Delivery, s *signature.Scheme, at time.Time) error {
	if len(src.Secrets) == 0 {
		return errors.New("no secret to sign with")
	}
	r := SignatureRequest(src, d)
	if err := s.Sign(src.Secrets[0].Value, &r, at); err != nil {
		return fmt.Errorf("sign as %s: %w", s.Name, err)
	}
	d.Header, d.Body = r.Header, r.Body
	if _, query, ok := strings.Cut(r.URL, "?"); ok && !strings.Contains(src.URL, "?") {
		d.Query = query
	}
	return nil
}

// newRejection converts an error of package signature into a Rejection.
func newRejection(err error) *Rejection {
	var e *signature.Error
	if !errors.As(err, &e) {
		return &Rejection{Reason: WrongSignature, Detail: err.Error()}
	}
	reason := map[signature.Problem]Reason{
		signature.Missing:   MissingSignature,
		signature.Malformed: MalformedSignature,
		signature.Wrong:     WrongSignature,
		signature.Stale:     StaleTimestamp,
		signature.Future:    FutureTimestamp,
	}[e.Problem]
	return &Rejection{Reason: reason, Detail: e.Detail}
}

// MaxNameBytes is the maximum length of a name chosen by a sender: an event's key or type, an
// account, an object's id.
const MaxNameBytes = 255

// ValidName reports whether a sender's text can be a name: not empty, at most MaxNameBytes long,
// valid UTF-8, without control characters and without U+FFFD. PostgreSQL rejects NUL in text. A
// name that cannot be displayed cannot be requested. U+FFFD stands for bytes that could not be
// decoded, so two different names would become one.
func ValidName(s string) bool {
	invalid := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }
	return s != "" && len(s) <= MaxNameBytes && utf8.ValidString(s) && !strings.ContainsFunc(s, invalid)
}

// CheckSecrets returns what is wrong with a source's secrets. It returns nil if each can be used
// with one of the schemes.
func CheckSecrets(src *Source, schemes ...*signature.Scheme) error {
	if len(src.Secrets) == 0 {
		return errors.New("secrets: none given; name at least one")
	}
	for _, secret := range src.Secrets {
		var bad error
		for _, s := range schemes {
			err := s.CheckSecret(secret.Value)
			if err == nil {
				bad = nil
				break
			}
			bad = cmp.Or(bad, err)
		}
		if bad != nil {
			return fmt.Errorf("secrets: %s cannot be used: %w", secret.Name, bad)
		}
	}
	return nil
}
