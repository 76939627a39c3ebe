package signature

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"slices"
	"time"
)

// Problem is why a verification fails.
type Problem int

// The problems of a signature, in the order of the checks.
const (
	// Missing: the signature is missing.
	Missing Problem = iota + 1
	// Malformed: the signature, or the data that it must cover, cannot be read.
	Malformed
	// Wrong: no secret matches any signature.
	Wrong
	// Stale: the signature is correct, but too old.
	Stale
	// Future: the signature is correct, but its time is too far in the future.
	Future
)

// Error is the error of Verify. Detail says what was found. It never contains a secret or a correct
// signature.
type Error struct {
	Problem Problem
	Detail  string
}

func (e *Error) Error() string { return e.Detail }

func newError(p Problem, format string, args ...any) error {
	return &Error{Problem: p, Detail: fmt.Errorf(format, args...).Error()}
}

// Match is the result of a successful verification.
type Match struct {
	// Secret is the index of the matching secret.
	Secret int
	// SignedAt is the signed time, zero if the scheme signs none.
	SignedAt time.Time
}

// Verify verifies a request: any of the secrets may match any of the signatures. Comparisons take
// constant time. A signed time may differ from the time of receipt by the tolerance (0: the
// scheme's) in both directions. It is checked after the signature, so that a stale delivery is
// distinguished from a forged one. An empty or invalid secret matches nothing. The error is an
// *Error.
func (s *Scheme) Verify(secrets [][]byte, r Request, tolerance time.Duration) (Match, error) {
	v := &values{request: &r}
	claims, err := s.readClaims(v)
	if err != nil {
		return Match{}, err
	}
	secret, c, err := s.findMatch(secrets, v, claims)
	if err != nil {
		return Match{}, err
	}
	if err := s.checkBodyDigest(v); err != nil {
		return Match{}, err
	}
	m := Match{Secret: secret, SignedAt: c.signedAt}
	if s.Timestamp == nil || s.Timestamp.Unchecked {
		return m, nil
	}
	return m, checkAge(m.SignedAt, r.ReceivedAt, s.tolerance(tolerance))
}

func (s *Scheme) tolerance(given time.Duration) time.Duration {
	switch {
	case given != 0:
		return given
	case s.Timestamp.Tolerance != 0:
		return s.Timestamp.Tolerance
	}
	return DefaultTolerance
}

// findMatch finds the first secret that matches one of the signatures.
func (s *Scheme) findMatch(secrets [][]byte, v *values, claims []claim) (int, *claim, error) {
	tried := false
	var firstErr error
	for i, secret := range secrets {
		k := v.request.Keys.parsed(s, secret)
		if k.err != nil {
			continue // an invalid secret matches nothing; CheckSecret has reported it to the operator
		}
		v.secret = secret
		for j := range claims {
			v.claim = &claims[j]
			for n := range 1 + len(s.Or) {
				ok, err := s.verifyKey(k, v, s.messageAt(n))
				if ok {
					return i, v.claim, nil
				}
				tried = tried || err == nil
				firstErr = cmp.Or(firstErr, err)
			}
		}
	}
	if firstErr != nil && !tried {
		return 0, nil, firstErr
	}
	signatures := 0
	for _, c := range claims {
		signatures += len(c.signatures)
	}
	return 0, nil, newError(Wrong, "%s: none of %d secrets matches any of %d signatures over %s, %d bytes of body",
		s.DescribePlace(), len(secrets), signatures, s.describeMessage(), len(v.request.Body))
}

// messageAt returns the n-th variant of the signed message.
func (s *Scheme) messageAt(n int) *Template {
	if n == 0 {
		return &s.Message
	}
	return &s.Or[n-1]
}

// describeMessage describes the signed message.
func (s *Scheme) describeMessage() string {
	if s.Method == Token {
		return "no message (the signature is a shared token)"
	}
	return s.Message.escaped()
}

// key is a parsed secret: the bytes of a shared secret, or a public key.
type key struct {
	shared []byte
	public crypto.PublicKey
}

// key parses a secret. The error contains nothing of the secret.
func (s *Scheme) key(secret []byte) (k key, err error) {
	switch {
	case len(secret) == 0:
		return k, errors.New("it is empty; an empty secret would let anyone sign")
	case s.IsAsymmetric():
		k.public, err = s.publicKey(secret)
		return k, err
	}
	if k.shared, err = s.Key.toBytes(secret); err == nil && len(k.shared) == 0 {
		err = errors.New("it has no key after its prefix")
	}
	return k, err
}

// verifyKey reports whether a key matches one of a claim's signatures.
func (s *Scheme) verifyKey(k *parsedKey, v *values, message *Template) (bool, error) {
	if s.IsAsymmetric() {
		return s.verifyPublicKey(k.public, v, message)
	}
	expected, err := s.expectedSignature(k, v, message)
	if err != nil {
		return false, err
	}
	found := 0
	for _, signature := range v.claim.signatures {
		found |= s.equalSignatures(signature, expected)
	}
	return found == 1, nil
}

// equalSignatures returns 1 if two signatures are equal, else 0, in constant time. Tokens can have
// any length, so it compares their digests: timing then does not show the length either.
func (s *Scheme) equalSignatures(a, b []byte) int {
	if s.Method == Token {
		return subtle.ConstantTimeCompare(s.Digest.sum(a), s.Digest.sum(b))
	}
	return subtle.ConstantTimeCompare(a, b)
}

// expectedSignature returns the correct symmetric signature.
func (s *Scheme) expectedSignature(k *parsedKey, v *values, message *Template) ([]byte, error) {
	if s.Method == Token {
		return k.shared, nil
	}
	var h hash.Hash
	if s.isHMAC() {
		h = k.takeMAC(s.Digest)
		defer k.releaseMAC(h)
	} else {
		h = s.Digest.newHash()()
	}
	if err := message.expandTo(h, v.find); err != nil {
		return nil, s.incompleteError(err)
	}
	return h.Sum(v.digestBuffer[:0]), nil
}

// incompleteError is the error of a signed message with missing parts. The problem is not Missing,
// because there is a signature; it cannot be verified.
func (s *Scheme) incompleteError(err error) error {
	return newError(Malformed, "the signed message cannot be built: %w or not unique", err)
}

func (s *Scheme) verifyPublicKey(public crypto.PublicKey, v *values, template *Template) (bool, error) {
	message, err := s.signedBytes(v, template)
	if err != nil {
		return false, err
	}
	if public, ok := public.(ed25519.PublicKey); ok {
		return slices.ContainsFunc(v.claim.signatures,
			func(b []byte) bool { return ed25519.Verify(public, message, b) }), nil
	}
	digest := s.Digest.sum(message)
	return slices.ContainsFunc(v.claim.signatures, func(b []byte) bool {
		switch public := public.(type) {
		case *ecdsa.PublicKey:
			return ecdsa.VerifyASN1(public, digest, b)
		case *rsa.PublicKey:
			return rsa.VerifyPKCS1v15(public, s.Digest.crypto(), digest, b) == nil
		}
		return false
	}), nil
}

// signedBytes returns the signed message in one piece, which public-key methods need.
func (s *Scheme) signedBytes(v *values, message *Template) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, len(v.request.Body)+256))
	if err := message.expandTo(out, v.find); err != nil {
		return nil, s.incompleteError(err)
	}
	return out.Bytes(), nil
}

// checkBodyDigest compares the body with its signed digest.
func (s *Scheme) checkBodyDigest(v *values) error {
	if s.Body == nil {
		return nil
	}
	text, ok := v.find(s.Body.From)
	if !ok {
		return newError(Malformed, "no digest of the body: %s must be present exactly once", s.Body.From)
	}
	claimed, err := s.Body.Encoding.decode(string(text))
	if err != nil {
		return newError(Malformed, "the body's digest in %s cannot be read: %w", s.Body.From, err)
	}
	if subtle.ConstantTimeCompare(claimed, s.Body.Digest.sum(v.request.Body)) != 1 {
		return newError(Wrong, "the body does not match the digest that was signed in %s", s.Body.From)
	}
	return nil
}

// checkAge compares a signed time with the time of receipt.
func checkAge(signed, received time.Time, tolerance time.Duration) error {
	// Both differences are computed, because the minimum Duration, which a time centuries ahead
	// gives, has no negative.
	age, ahead := received.Sub(signed), signed.Sub(received)
	switch {
	case age > tolerance:
		return newError(Stale, "signed at %s, %s before receipt; %s are allowed", signed.Format(time.RFC3339),
			age.Round(time.Second), tolerance)
	case ahead > tolerance:
		return newError(Future, "signed at %s, %s after receipt; %s are allowed", signed.Format(time.RFC3339),
			ahead.Round(time.Second), tolerance)
	}
	return nil
}
