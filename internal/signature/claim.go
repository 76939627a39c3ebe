package signature

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a request may claim, far above what any sender needs and small enough that a hostile one costs little. Each group
// has the body read again, and so has each signature of a key pair.
const (
	maxHeader     = 8 << 10
	maxGroups     = 8
	maxItems      = 400
	maxNumbered   = 100
	maxSignatures = 100
	maxPublic     = 8
)

// claim is what one group of signatures says, before anything of it is believed.
type claim struct {
	signatures [][]byte
	items      []item
	// timestamp is signed as it was spelled; at is its value.
	timestamp string
	at        time.Time
}

type item struct{ key, value string }

// item is the one item under a key, or at a place.
func (c *claim) item(name string) (string, bool) {
	found, n := "", 0
	for i, it := range c.items {
		if it.key == name || it.key == "" && strconv.Itoa(i) == name {
			found = it.value
			n++
		}
	}
	return found, n == 1
}

// claims reads every signature of a request. The error is an *Error.
func (s *Scheme) claims(v *values) ([]claim, error) {
	if !s.applies(v) {
		return nil, fail(Missing, "%s is not %s", s.When.From, s.When.words())
	}
	texts, err := s.texts(v)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, fail(Missing, "no %s", s.Where())
	}
	var shared claim // the time, where all signatures share one
	if s.Timestamp != nil && s.Timestamp.From.Kind != Item {
		if shared.timestamp, shared.at, err = s.readTime(v); err != nil {
			return nil, err
		}
	}
	out := v.someClaims[:0]
	var bad error
	for _, text := range texts {
		for n, more := 1, true; more; n++ {
			var group string
			group, text, more = s.cut(text, s.Signature.Group)
			if n > maxGroups {
				return nil, fail(Malformed, "%s holds more than %d groups of signatures", s.Where(), maxGroups)
			}
			out = append(out, shared)
			if err := s.claim(v, group, &out[len(out)-1]); err != nil {
				bad = cmp.Or(bad, err)
				out = out[:len(out)-1]
				continue
			}
			out = s.join(out)
			if err := s.bounded(out); err != nil {
				return nil, err
			}
		}
	}
	if len(out) == 0 {
		return nil, bad
	}
	return out, nil
}

// join makes the last claim a part of the first where all sign the same bytes, so that those are read once.
func (s *Scheme) join(claims []claim) []claim {
	last := len(claims) - 1
	if last == 0 || s.ofItems() {
		return claims
	}
	claims[0].signatures = append(claims[0].signatures, claims[last].signatures...)
	return claims[:last]
}

// ofItems tells whether what is signed depends on the items beside the signature.
func (s *Scheme) ofItems() bool {
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item || s.Message.uses(Item) {
		return true
	}
	return slices.ContainsFunc(s.Or, func(t Template) bool { return t.uses(Item) })
}

// bounded refuses more signatures than are read.
func (s *Scheme) bounded(claims []claim) error {
	most, total := maxSignatures, 0
	if s.Asymmetric() {
		most = maxPublic
	}
	for _, c := range claims {
		total += len(c.signatures)
	}
	if total > most {
		return fail(Malformed, "%s holds more than %d signatures", s.Where(), most)
	}
	return nil
}

// claim reads one group of items. Signatures that cannot be decoded are passed over where there may be several: the sender may
// have added one that is not ours to read.
func (s *Scheme) claim(v *values, text string, c *claim) error {
	var bad error
	c.items = v.someItems[:0:0]
	if len(v.someClaims[0].items) == 0 { // the first claim has the room
		c.items = v.someItems[:0]
	}
	for i, more := 0, true; more; i++ {
		if i >= maxItems {
			return fail(Malformed, "%s has more than %d items", s.Where(), maxItems)
		}
		var part string
		part, text, more = s.cut(text, s.Signature.Separator)
		it, isSignature, err := s.item(i, part)
		if err != nil {
			return err
		}
		c.items = append(c.items, it)
		if !isSignature {
			continue
		}
		b, err := s.decode(it.value)
		if err != nil {
			bad = err
			continue
		}
		c.signatures = append(c.signatures, b)
	}
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item {
		var err error
		v.claim = c
		if c.timestamp, c.at, err = s.readTime(v); err != nil {
			return err
		}
	}
	switch {
	case len(c.signatures) > 0:
		return nil
	case bad != nil:
		return fail(Malformed, "%s cannot be read: %w", s.Where(), bad)
	case s.Signature.Assign == "":
		return fail(Malformed, "%s has no signature after its first %d items", s.Where(), s.Signature.Skip)
	}
	return fail(Malformed, "%s has no %s%s item", s.Where(), s.Signature.Item, s.Signature.Assign)
}

// decode reads one signature.
func (s *Scheme) decode(text string) ([]byte, error) {
	text, ok := strings.CutPrefix(text, s.Signature.Prefix)
	if !ok {
		return nil, fmt.Errorf("a signature begins with %q", s.Signature.Prefix)
	}
	b, err := s.Encoding.decode(text)
	if err != nil {
		return nil, err
	}
	if want := s.size(); s.Signature.Separator == "" && want > 0 && len(b) != want {
		return nil, fmt.Errorf("it holds %d bytes instead of %d", len(b), want)
	}
	return b, nil
}

// size is how many bytes a signature has; 0 where that differs.
func (s *Scheme) size() int {
	switch s.Method {
	case HMAC, Hash:
		return s.Digest.size()
	case Ed25519:
		return 64
	}
	return 0
}

// readTime reads the signed time, as it is spelled and as what it is.
func (s *Scheme) readTime(v *values) (string, time.Time, error) {
	from := s.Timestamp.From
	text, ok := v.text(from)
	if !ok && from.Kind == Item {
		return "", time.Time{}, fail(Malformed, "%s has not exactly one %s%s item", s.Where(), from.Name, s.Signature.Assign)
	}
	if !ok || text == "" {
		return "", time.Time{}, fail(Malformed, "no signed time: %s is not there once", from)
	}
	at, err := s.Timestamp.Unit.read(text)
	if err != nil {
		return "", time.Time{}, fail(Malformed, "the signed time in %s is %w", from, err)
	}
	return text, at, nil
}
