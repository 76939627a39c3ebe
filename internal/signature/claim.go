package signature

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of what a request may contain. They are far above the needs of any sender, and bound the
// cost of a hostile request. Each group, and each public-key signature, needs another pass over the
// body.
const (
	maxSignatureBytes      = 8 << 10
	maxSignatureGroups     = 8
	maxItems               = 400
	maxNumberedHeaders     = 100
	maxSignatures          = 100
	maxPublicKeySignatures = 8
)

// claim is one group of signatures, before verification.
type claim struct {
	signatures [][]byte
	items      []item
	// timestamp is the text of the signed time; signedAt is its value.
	timestamp string
	signedAt  time.Time
}

type item struct{ key, value string }

// findItem returns the value of the only item with a key or at a position.
func (c *claim) findItem(name string) (string, bool) {
	found, n := "", 0
	for i, it := range c.items {
		if it.key == name || it.key == "" && strconv.Itoa(i) == name {
			found = it.value
			n++
		}
	}
	return found, n == 1
}

// readClaims reads every signature of a request. The error is an *Error.
func (s *Scheme) readClaims(v *values) ([]claim, error) {
	if !s.isApplicable(v) {
		return nil, newError(Missing, "%s is not %s", s.When.From, s.When.describe())
	}
	texts, err := s.signatureTexts(v)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, newError(Missing, "no %s", s.DescribePlace())
	}
	var shared claim // has the signed time if all signatures share it
	if s.Timestamp != nil && s.Timestamp.From.Kind != Item {
		if shared.timestamp, shared.signedAt, err = s.readTime(v); err != nil {
			return nil, err
		}
	}
	out := v.claimsBuffer[:0]
	var firstErr error
	for _, text := range texts {
		for n, more := 1, true; more; n++ {
			var group string
			group, text, more = s.cutFirst(text, s.Signature.Group)
			if n > maxSignatureGroups {
				return nil, newError(Malformed, "%s holds more than %d groups of signatures", s.DescribePlace(),
					maxSignatureGroups)
			}
			out = append(out, shared)
			if err := s.readClaim(v, group, &out[len(out)-1]); err != nil {
				firstErr = cmp.Or(firstErr, err)
				out = out[:len(out)-1]
				continue
			}
			out = s.mergeClaims(out)
			if err := s.checkSignatureCount(out); err != nil {
				return nil, err
			}
		}
	}
	if len(out) == 0 {
		return nil, firstErr
	}
	return out, nil
}

// mergeClaims merges the last claim into the first if both sign the same bytes, so that the bytes
// are hashed once.
func (s *Scheme) mergeClaims(claims []claim) []claim {
	last := len(claims) - 1
	if last == 0 || s.dependsOnItems() {
		return claims
	}
	claims[0].signatures = append(claims[0].signatures, claims[last].signatures...)
	return claims[:last]
}

// dependsOnItems reports whether the signed message depends on the items next to the signature.
func (s *Scheme) dependsOnItems() bool {
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item || s.Message.usesKind(Item) {
		return true
	}
	return slices.ContainsFunc(s.Or, func(t Template) bool { return t.usesKind(Item) })
}

// checkSignatureCount returns an error if there are too many signatures.
func (s *Scheme) checkSignatureCount(claims []claim) error {
	limit, total := maxSignatures, 0
	if s.IsAsymmetric() {
		limit = maxPublicKeySignatures
	}
	for _, c := range claims {
		total += len(c.signatures)
	}
	if total > limit {
		return newError(Malformed, "%s holds more than %d signatures", s.DescribePlace(), limit)
	}
	return nil
}

// readClaim reads one group of items. It ignores a signature that cannot be decoded if another one
// can, because the sender may have added one of another kind.
func (s *Scheme) readClaim(v *values, text string, c *claim) error {
	var lastErr error
	c.items = v.itemsBuffer[:0:0]
	if len(v.claimsBuffer[0].items) == 0 { // the buffer is for the first claim
		c.items = v.itemsBuffer[:0]
	}
	for i, more := 0, true; more; i++ {
		if i >= maxItems {
			return newError(Malformed, "%s has more than %d items", s.DescribePlace(), maxItems)
		}
		var part string
		part, text, more = s.cutFirst(text, s.Signature.Separator)
		it, isSignature, err := s.readItem(i, part)
		if err != nil {
			return err
		}
		c.items = append(c.items, it)
		if !isSignature {
			continue
		}
		b, err := s.decodeSignature(it.value)
		if err != nil {
			lastErr = err
			continue
		}
		c.signatures = append(c.signatures, b)
	}
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item {
		var err error
		v.claim = c
		if c.timestamp, c.signedAt, err = s.readTime(v); err != nil {
			return err
		}
	}
	switch {
	case len(c.signatures) > 0:
		return nil
	case lastErr != nil:
		return newError(Malformed, "%s cannot be read: %w", s.DescribePlace(), lastErr)
	case s.Signature.KeySeparator == "":
		return newError(Malformed, "%s has no signature after its first %d items", s.DescribePlace(), s.Signature.Skip)
	}
	return newError(Malformed, "%s has no %s%s item", s.DescribePlace(), s.Signature.Item, s.Signature.KeySeparator)
}

// decodeSignature decodes one signature.
func (s *Scheme) decodeSignature(text string) ([]byte, error) {
	text, ok := strings.CutPrefix(text, s.Signature.Prefix)
	if !ok {
		return nil, fmt.Errorf("a signature must begin with %q", s.Signature.Prefix)
	}
	b, err := s.Encoding.decode(text)
	if err != nil {
		return nil, err
	}
	if want := s.signatureSize(); s.Signature.Separator == "" && want > 0 && len(b) != want {
		return nil, fmt.Errorf("it has %d bytes instead of %d", len(b), want)
	}
	return b, nil
}

// signatureSize returns how many bytes a signature has; 0 if that varies.
func (s *Scheme) signatureSize() int {
	switch {
	case s.isHMAC(), s.Method == Hash:
		return s.Digest.size()
	case s.Method == Ed25519:
		return 64
	}
	return 0
}

// readTime reads the signed time. It returns the text and its value.
func (s *Scheme) readTime(v *values) (string, time.Time, error) {
	from := s.Timestamp.From
	text, ok := v.text(from)
	if !ok && from.Kind == Item {
		return "", time.Time{}, newError(Malformed, "%s must have exactly one %s%s item", s.DescribePlace(), from.Name,
			s.Signature.KeySeparator)
	}
	if !ok || text == "" {
		return "", time.Time{}, newError(Malformed, "no signed time: %s must be present exactly once", from)
	}
	at, err := s.Timestamp.Unit.parse(text)
	if err != nil {
		return "", time.Time{}, newError(Malformed, "the signed time in %s is %w", from, err)
	}
	return text, at, nil
}
