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

// DefaultTolerance is how far a signed time may lie from the time of receipt where neither source nor scheme says.
const DefaultTolerance = signature.DefaultTolerance

// Prove verifies a delivery by any of a provider's signature schemes that it carries a signature of: schemes may share a header, and
// which of them a source's secrets belong to is known only by trying. Where none proves it, the most telling failure is the error:
// a right signature of the wrong time before a wrong one, that before an unreadable one. Where the delivery carries none, the first
// scheme says what is missing, unless another finds it unreadable. The error is a *Rejection.
func Prove(src *Source, d *Delivery, schemes ...*signature.Scheme) (Verification, error) {
	var few [4][]byte
	secrets := few[:0]
	for _, secret := range src.Secrets {
		secrets = append(secrets, secret.Value)
	}
	r := Request(src, d)
	if len(schemes) == 1 { // what proves carries a signature, and there is no other failure to tell
		m, err := schemes[0].Verify(secrets, r, src.Tolerance)
		if err != nil {
			return Verification{}, rejection(err)
		}
		return verification(src, schemes[0], m), nil
	}
	absent := func(s *signature.Scheme) bool { return !s.Present(r) }
	present := schemes
	if slices.ContainsFunc(schemes, absent) {
		present = slices.DeleteFunc(slices.Clone(schemes), absent)
	}
	if len(present) > 0 {
		schemes = present
	}
	var told *Rejection
	for _, s := range schemes {
		m, err := s.Verify(secrets, r, src.Tolerance)
		if err == nil && len(present) == 0 {
			err = errors.New("the delivery does not say that it is signed so")
		}
		if err == nil {
			return verification(src, s, m), nil
		}
		if each := rejection(err); told == nil || each.telling() > told.telling() {
			told = each
		}
	}
	return Verification{}, told
}

func verification(src *Source, s *signature.Scheme, m signature.Match) Verification {
	return Verification{Scheme: s.Name, Secret: src.Secrets[m.Secret].Name, SignedAt: m.SignedAt}
}

// telling is how much a failed proof says of a delivery: of several, the greatest is the one to tell.
func (r *Rejection) telling() int {
	return slices.Index([]Reason{MissingSignature, MalformedSignature, WrongSignature, FutureTimestamp, StaleTimestamp}, r.Reason)
}

// Request is what a signature scheme reads of a delivery to a source. The URL is the configured one, with the delivery's query
// where it has none of its own.
func Request(src *Source, d *Delivery) signature.Request {
	url := src.URL
	if url != "" && d.Query != "" && !strings.Contains(url, "?") {
		url += "?" + d.Query
	}
	return signature.Request{Method: d.Method, URL: url, Header: d.Header, Body: d.Body, ReceivedAt: d.ReceivedAt, Keys: src.Keys}
}

// Seal signs a delivery as the provider would, with the source's first secret.
func Seal(src *Source, d *Delivery, s *signature.Scheme, at time.Time) error {
	if len(src.Secrets) == 0 {
		return errors.New("no secret to sign with")
	}
	r := Request(src, d)
	if err := s.Sign(src.Secrets[0].Value, &r, at); err != nil {
		return fmt.Errorf("sign as %s: %w", s.Name, err)
	}
	d.Header, d.Body = r.Header, r.Body
	if _, query, ok := strings.Cut(r.URL, "?"); ok && !strings.Contains(src.URL, "?") {
		d.Query = query
	}
	return nil
}

// rejection says in this package's words why a signature proves nothing.
func rejection(err error) *Rejection {
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

// MaxName is how many bytes a name that a sender chose may have: an event's key and type, an account, an object's id.
const MaxName = 255

// ValidName tells whether a sender's text can name something: not empty, at most MaxName bytes, valid UTF-8, without
// control characters and without U+FFFD. PostgreSQL text refuses NUL, what cannot be shown cannot be asked for, and U+FFFD
// stands for what could not be decoded, so that two different names would become one.
func ValidName(s string) bool {
	odd := func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) }
	return s != "" && len(s) <= MaxName && utf8.ValidString(s) && !strings.ContainsFunc(s, odd)
}

// CheckSecrets tells what is wrong with a source's secrets; nil if each can be used with one of the schemes.
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
