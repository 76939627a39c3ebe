package signature

import (
	"crypto/hmac"
	"fmt"
	"time"
)

// Problem is why a signature proves nothing.
type Problem int

// The problems of a signature, in the order they are looked for.
const (
	// Missing: the header is not there.
	Missing Problem = iota + 1
	// Malformed: the header cannot be read.
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
	return &Error{Problem: p, Detail: fmt.Sprintf(format, args...)}
}

// Match is what proved a request.
type Match struct {
	// Secret is the place in the given secrets of the one that matched.
	Secret int
	// SignedAt is the signed time, zero where the scheme signs none.
	SignedAt time.Time
}

// Verify proves a request: any of the secrets may have made any of the signatures. Comparisons take the same time
// wherever the bytes differ. A signed time may lie up to tolerance from the time of receipt, both ways; it is judged
// after the signature, so that a stale delivery is told from a forged one. An empty secret proves nothing. The error
// is an *Error.
func (s *Scheme) Verify(secrets [][]byte, r Request, tolerance time.Duration) (Match, error) {
	claim, err := s.read(r.Header)
	if err != nil {
		return Match{}, err
	}
	i, ok := s.match(secrets, claim, r.Body)
	if !ok {
		return Match{}, fail(Wrong, "%s: none of %d secrets made any of %d signatures over %d bytes of body",
			s.Header, len(secrets), len(claim.signatures), len(r.Body))
	}
	if s.Pairs == nil {
		return Match{Secret: i}, nil
	}
	m := Match{Secret: i, SignedAt: time.Unix(claim.seconds, 0).UTC()}
	return m, fresh(m.SignedAt, r.ReceivedAt, tolerance)
}

// match finds the first secret that made one of the signatures.
func (s *Scheme) match(secrets [][]byte, c claim, body []byte) (int, bool) {
	var sum []byte
	for i, secret := range secrets {
		if len(secret) == 0 {
			continue
		}
		sum = s.sum(secret, c.timestamp, body, sum[:0])
		for _, signature := range c.signatures {
			if hmac.Equal(signature, sum) {
				return i, true
			}
		}
	}
	return 0, false
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
