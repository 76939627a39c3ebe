package provider

import (
	"errors"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/signature"
)

// DefaultTolerance is how far a signed time may lie from the time of receipt where a source sets none.
const DefaultTolerance = 300 * time.Second

// Prove verifies a delivery by a signature scheme under a source's secrets. The error is a *Rejection.
func Prove(s *signature.Scheme, src *Source, d *Delivery) (Verification, error) {
	secrets := make([][]byte, len(src.Secrets))
	for i, secret := range src.Secrets {
		secrets[i] = secret.Value
	}
	tolerance := src.Tolerance
	if tolerance == 0 {
		tolerance = DefaultTolerance
	}
	r := signature.Request{Header: d.Header, Body: d.Body, ReceivedAt: d.ReceivedAt}
	m, err := s.Verify(secrets, r, tolerance)
	if err != nil {
		return Verification{}, rejection(err)
	}
	return Verification{Scheme: s.Name, Secret: src.Secrets[m.Secret].Name, SignedAt: m.SignedAt}, nil
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

// CheckSecrets tells what is wrong with a source's secrets; nil if they can be used.
func CheckSecrets(src *Source) error {
	if len(src.Secrets) == 0 {
		return errors.New("secrets: none given; name at least one")
	}
	for _, s := range src.Secrets {
		if len(s.Value) == 0 {
			return errors.New("secrets: " + s.Name + " is empty; an empty secret would let anyone sign")
		}
	}
	return nil
}
