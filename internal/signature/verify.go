package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/subtle"
	"fmt"
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
	signatures := 0
	for i, secret := range secrets {
		if len(secret) == 0 {
			continue
		}
		for j := range claims {
			signatures += len(claims[j].signatures)
			ok, err := s.proves(secret, v, &claims[j])
			if err != nil {
				return 0, nil, err
			}
			if ok {
				return i, &claims[j], nil
			}
		}
	}
	return 0, nil, fail(Wrong, "%s: none of %d secrets made any of %d signatures over %s, %d bytes of body",
		s.Where(), len(secrets), signatures, s.covered(), len(v.r.Body))
}

// covered says in words what is signed.
func (s *Scheme) covered() string {
	if s.Method == Token {
		return "nothing (it is a shared token)"
	}
	return s.Message.String()
}

// proves tells whether a secret made one of a claim's signatures.
func (s *Scheme) proves(secret []byte, v *values, c *claim) (bool, error) {
	with := values{r: v.r, claim: c, secret: secret, form: v.form, parsed: v.parsed}
	if s.asymmetric() {
		return s.provesPublic(secret, &with)
	}
	want, err := s.sum(secret, &with)
	if err != nil || want == nil {
		return false, err
	}
	for _, signature := range c.signatures {
		if subtle.ConstantTimeCompare(signature, want) == 1 {
			return true, nil
		}
	}
	return false, nil
}

// sum is what a symmetric signature must be; nil where the secret is no key.
func (s *Scheme) sum(secret []byte, v *values) ([]byte, error) {
	key, err := s.Key.of(secret)
	if err != nil || len(key) == 0 {
		return nil, nil //nolint:nilerr // such a secret proves nothing; CheckSecret has told the operator
	}
	if s.Method == Token {
		return key, nil
	}
	h := s.Digest.new()
	if s.Method == HMAC {
		h = hmac.New(s.Digest.new, key)
	}
	if err := s.Message.write(h, v.find); err != nil {
		return nil, fail(Malformed, "what is signed cannot be put together: %w", err)
	}
	return h.Sum(nil), nil
}

func (s *Scheme) provesPublic(secret []byte, v *values) (bool, error) {
	key, err := s.publicKey(secret)
	if err != nil {
		return false, nil //nolint:nilerr // such a secret proves nothing; CheckSecret has told the operator
	}
	message, err := s.message(v)
	if err != nil {
		return false, err
	}
	for _, signature := range v.claim.signatures {
		switch key := key.(type) {
		case ed25519.PublicKey:
			if ed25519.Verify(key, message, signature) {
				return true, nil
			}
		case *ecdsa.PublicKey:
			if ecdsa.VerifyASN1(key, s.Digest.of(message), signature) {
				return true, nil
			}
		case *rsa.PublicKey:
			if rsa.VerifyPKCS1v15(key, s.Digest.crypto(), s.Digest.of(message), signature) == nil {
				return true, nil
			}
		}
	}
	return false, nil
}

// message is what is signed, in memory: these methods need it whole, or its digest.
func (s *Scheme) message(v *values) ([]byte, error) {
	var out buffer
	if err := s.Message.write(&out, v.find); err != nil {
		return nil, fail(Malformed, "what is signed cannot be put together: %w", err)
	}
	return out, nil
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) {
	*b = append(*b, p...)
	return len(p), nil
}

func (d Digest) of(b []byte) []byte {
	h := d.new()
	h.Write(b)
	return h.Sum(nil)
}

func (d Digest) crypto() crypto.Hash {
	return [...]crypto.Hash{crypto.SHA256, crypto.SHA1, crypto.SHA512}[d]
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
