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

// Problem is why a signature proves nothing.
type Problem int

// The problems of a signature, in the order they are looked for.
const (
	// Missing: the signature is not there.
	Missing Problem = iota + 1
	// Malformed: it, or what it must cover, cannot be read.
	Malformed
	// Wrong: none of the secrets made any of the signatures.
	Wrong
	// Stale: rightly signed, but too long ago.
	Stale
	// Future: rightly signed, but for a time too far ahead.
	Future
)

// Error is the error of Verify. Detail says what was seen and never holds a secret or a right signature.
type Error struct {
	Problem Problem
	Detail  string
}

func (e *Error) Error() string { return e.Detail }

func fail(p Problem, format string, args ...any) error {
	return &Error{Problem: p, Detail: fmt.Errorf(format, args...).Error()}
}

// Match is what proved a request.
type Match struct {
	// Secret is the place in the given secrets of the one that matched.
	Secret int
	// SignedAt is the signed time, zero where the scheme signs none.
	SignedAt time.Time
}

// Verify proves a request: any of the secrets may have made any of the signatures. Comparisons take the same time wherever the
// bytes differ. A signed time may lie up to tolerance (0: the scheme's) from the time of receipt, both ways; it is judged after the
// signature, so that a stale delivery is told from a forged one. A secret that is empty or no key proves nothing. The error is an
// *Error.
func (s *Scheme) Verify(secrets [][]byte, r Request, tolerance time.Duration) (Match, error) {
	v := &values{r: &r}
	claims, err := s.claims(v)
	if err != nil {
		return Match{}, err
	}
	secret, c, err := s.match(secrets, v, claims)
	if err != nil {
		return Match{}, err
	}
	if err := s.checkBody(v); err != nil {
		return Match{}, err
	}
	m := Match{Secret: secret, SignedAt: c.at}
	if s.Timestamp == nil || s.Timestamp.Unchecked {
		return m, nil
	}
	return m, fresh(m.SignedAt, r.ReceivedAt, s.tolerance(tolerance))
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

// match finds the first secret that made one of the signatures.
func (s *Scheme) match(secrets [][]byte, v *values, claims []claim) (int, *claim, error) {
	tried := false
	var bad error
	for i, secret := range secrets {
		k := v.r.Keys.of(s, secret)
		if k.err != nil {
			continue // such a secret proves nothing; CheckSecret has told the operator
		}
		v.secret = secret
		for j := range claims {
			v.claim = &claims[j]
			for n := range 1 + len(s.Or) {
				ok, err := s.proves(k, v, s.message(n))
				if ok {
					return i, v.claim, nil
				}
				tried = tried || err == nil
				bad = cmp.Or(bad, err)
			}
		}
	}
	if bad != nil && !tried {
		return 0, nil, bad
	}
	signatures := 0
	for _, c := range claims {
		signatures += len(c.signatures)
	}
	return 0, nil, fail(Wrong, "%s: none of %d secrets made any of %d signatures over %s, %d bytes of body",
		s.Where(), len(secrets), signatures, s.covered(), len(v.r.Body))
}

// message is the n-th spelling of what is signed.
func (s *Scheme) message(n int) *Template {
	if n == 0 {
		return &s.Message
	}
	return &s.Or[n-1]
}

// covered says in words what is signed.
func (s *Scheme) covered() string {
	if s.Method == Token {
		return "nothing (it is a shared token)"
	}
	return s.Message.shown()
}

// key is what a secret is good for: the bytes of a shared secret, or a public key.
type key struct {
	shared []byte
	public crypto.PublicKey
}

// key reads a secret. The error says why it is none, in words that hold nothing of it.
func (s *Scheme) key(secret []byte) (k key, err error) {
	switch {
	case len(secret) == 0:
		return k, errors.New("it is empty; an empty secret would let anyone sign")
	case s.Asymmetric():
		k.public, err = s.publicKey(secret)
		return k, err
	}
	if k.shared, err = s.Key.of(secret); err == nil && len(k.shared) == 0 {
		err = errors.New("it holds no key")
	}
	return k, err
}

// proves tells whether a key made one of a claim's signatures.
func (s *Scheme) proves(k *keyed, v *values, message *Template) (bool, error) {
	if s.Asymmetric() {
		return s.provesPublic(k.public, v, message)
	}
	want, err := s.sum(k, v, message)
	if err != nil {
		return false, err
	}
	found := 0
	for _, signature := range v.claim.signatures {
		found |= s.same(signature, want)
	}
	return found == 1, nil
}

// same compares in constant time. Tokens, which have any length, are compared by their digests, so that not even that is told.
func (s *Scheme) same(a, b []byte) int {
	if s.Method == Token {
		return subtle.ConstantTimeCompare(s.Digest.of(a), s.Digest.of(b))
	}
	return subtle.ConstantTimeCompare(a, b)
}

// sum is what a symmetric signature must be.
func (s *Scheme) sum(k *keyed, v *values, message *Template) ([]byte, error) {
	if s.Method == Token {
		return k.shared, nil
	}
	var h hash.Hash
	if s.Method == HMAC {
		h = k.mac(s.Digest)
		defer k.release(h)
	} else {
		h = s.Digest.new()()
	}
	if err := message.write(h, v.find); err != nil {
		return nil, s.incomplete(err)
	}
	return h.Sum(v.digest[:0]), nil
}

// incomplete says that what is signed lacks something. That is not a missing signature: there is one, and without what it covers
// it cannot be read.
func (s *Scheme) incomplete(err error) error {
	return fail(Malformed, "what is signed cannot be put together: %w once", err)
}

func (s *Scheme) provesPublic(public crypto.PublicKey, v *values, template *Template) (bool, error) {
	message, err := s.bytes(v, template)
	if err != nil {
		return false, err
	}
	if public, ok := public.(ed25519.PublicKey); ok {
		return slices.ContainsFunc(v.claim.signatures, func(b []byte) bool { return ed25519.Verify(public, message, b) }), nil
	}
	digest := s.Digest.of(message)
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

// bytes is what is signed, in memory: key pairs need it whole, or its digest.
func (s *Scheme) bytes(v *values, message *Template) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, len(v.r.Body)+256))
	if err := message.write(out, v.find); err != nil {
		return nil, s.incomplete(err)
	}
	return out.Bytes(), nil
}

// checkBody compares the body with the digest of it that was signed.
func (s *Scheme) checkBody(v *values) error {
	if s.Body == nil {
		return nil
	}
	text, ok := v.find(s.Body.From)
	if !ok {
		return fail(Malformed, "no digest of the body: %s is not there once", s.Body.From)
	}
	claimed, err := s.Body.Encoding.decode(string(text))
	if err != nil {
		return fail(Malformed, "the body's digest in %s cannot be read: %w", s.Body.From, err)
	}
	if subtle.ConstantTimeCompare(claimed, s.Body.Digest.of(v.r.Body)) != 1 {
		return fail(Wrong, "the body is not the one whose digest was signed in %s", s.Body.From)
	}
	return nil
}

// fresh judges a signed time against the time of receipt.
func fresh(signed, received time.Time, tolerance time.Duration) error {
	// Both differences are taken, since the least Duration, which a time centuries ahead gives, has no negative.
	age, ahead := received.Sub(signed), signed.Sub(received)
	switch {
	case age > tolerance:
		return fail(Stale, "signed at %s, %s before receipt; %s are allowed", signed.Format(time.RFC3339), age.Round(time.Second), tolerance)
	case ahead > tolerance:
		return fail(Future, "signed at %s, %s after receipt; %s are allowed", signed.Format(time.RFC3339), ahead.Round(time.Second), tolerance)
	}
	return nil
}
