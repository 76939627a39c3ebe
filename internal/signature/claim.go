package signature

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a request may claim, far above what any sender needs and small enough that a hostile one costs nothing.
const (
	maxHeader     = 8 << 10
	maxSignatures = 32
	maxNumbered   = 100
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

// Present tells whether a request has a signature of this scheme at all.
func (s *Scheme) Present(r Request) bool {
	texts, err := s.texts(&values{r: &r})
	if err != nil || len(texts) == 0 {
		return err != nil
	}
	if s.Body == nil {
		return true
	}
	_, ok := (&values{r: &r}).find(s.Body.From)
	return ok
}

// Where says where the signature sits, for messages.
func (s *Scheme) Where() string {
	words := make([]string, len(s.Signature.In))
	for i, ref := range s.Signature.In {
		words[i] = ref.String()
		if ref.Kind == Header {
			words[i] = ref.Name + " header"
		}
	}
	return strings.Join(words, " or ")
}

// texts are what stands at the places of the signatures.
func (s *Scheme) texts(v *values) ([]string, error) {
	var out []string
	add := func(ref Ref) (bool, error) {
		if ref.Kind == Header {
			if n := len(v.r.Header[ref.Name]); n > 1 {
				return false, fail(Malformed, "%d %s headers instead of one", n, ref.Name)
			}
		}
		text, ok := v.text(ref)
		if !ok || text == "" {
			return false, nil
		}
		if len(text) > maxHeader {
			return false, fail(Malformed, "%s is %d bytes long; at most %d are read", s.Where(), len(text), maxHeader)
		}
		out = append(out, text)
		return true, nil
	}
	for _, ref := range s.Signature.In {
		stem, numbered := strings.CutSuffix(ref.Name, "#")
		if ref.Kind != Header || !numbered {
			if _, err := add(ref); err != nil {
				return nil, err
			}
			continue
		}
		for n := 1; n <= maxNumbered; n++ {
			ok, err := add(Ref{Kind: Header, Name: http.CanonicalHeaderKey(stem + strconv.Itoa(n))})
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
		}
	}
	return out, nil
}

// claims reads every signature of a request. The error is an *Error.
func (s *Scheme) claims(v *values) ([]claim, error) {
	texts, err := s.texts(v)
	if err != nil {
		return nil, err
	}
	if len(texts) == 0 {
		return nil, fail(Missing, "no %s", s.Where())
	}
	var out []claim
	var bad error
	total := 0
	for _, text := range texts {
		for _, part := range split(text, s.Signature.Group) {
			c, err := s.claim(v, part)
			if err != nil {
				bad = errors.Join(bad, err)
				continue
			}
			if total += len(c.signatures); total > maxSignatures {
				return nil, fail(Malformed, "%s holds more than %d signatures", s.Where(), maxSignatures)
			}
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		var first *Error
		errors.As(bad, &first)
		return nil, first
	}
	return out, nil
}

func split(text, separator string) []string {
	if separator == "" {
		return []string{text}
	}
	return strings.Split(text, separator)
}

// claim reads one group of items. Signatures that cannot be decoded are passed over where there may be several: the sender may
// have added one that is not ours to read.
func (s *Scheme) claim(v *values, text string) (claim, error) {
	var c claim
	var bad error
	for i, part := range split(text, s.Signature.Separator) {
		it, isSignature := item{value: part}, i >= s.Signature.Skip
		if s.Signature.Assign != "" {
			key, value, ok := strings.Cut(part, s.Signature.Assign)
			if !ok {
				return c, fail(Malformed, "%s has an item that is not key%svalue", s.Where(), s.Signature.Assign)
			}
			it, isSignature = item{key, value}, key == s.Signature.Item
		}
		c.items = append(c.items, it)
		if len(c.items) > 4*maxSignatures {
			return c, fail(Malformed, "%s has more than %d items", s.Where(), 4*maxSignatures)
		}
		if !isSignature {
			continue
		}
		b, err := s.decode(it.value)
		if err != nil {
			bad = err
			continue
		}
		if c.signatures = append(c.signatures, b); len(c.signatures) > maxSignatures {
			return c, fail(Malformed, "%s holds more than %d signatures", s.Where(), maxSignatures)
		}
	}
	if err := s.readTime(v, &c); err != nil {
		return c, err
	}
	if len(c.signatures) == 0 && bad != nil {
		return c, fail(Malformed, "%s cannot be read: %v", s.Where(), bad)
	}
	if len(c.signatures) == 0 {
		return c, fail(Malformed, "%s has no %s%s item", s.Where(), s.Signature.Item, s.Signature.Assign)
	}
	return c, nil
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
		return s.Digest.new().Size()
	case Ed25519:
		return 64
	}
	return 0
}

func (s *Scheme) readTime(v *values, c *claim) error {
	if s.Timestamp == nil {
		return nil
	}
	with := *v
	with.claim = c
	text, ok := with.text(s.Timestamp.From)
	if !ok && s.Timestamp.From.Kind == Item {
		return fail(Malformed, "%s has not exactly one %s%s item", s.Where(), s.Timestamp.From.Name, s.Signature.Assign)
	}
	if !ok || text == "" {
		return fail(Malformed, "no signed time: %s is not there once", s.Timestamp.From)
	}
	at, err := s.Timestamp.Unit.read(text)
	if err != nil {
		return fail(Malformed, "the signed time in %s is %w", s.Timestamp.From, err)
	}
	c.timestamp, c.at = text, at
	return nil
}

// Unit is how a time is written.
type Unit int

// The units.
const (
	Seconds Unit = iota
	Milliseconds
	RFC3339
	// Magnitude is seconds, or milliseconds where the number is too large for those; for senders whose documents disagree.
	Magnitude
)

// leastMilliseconds is the year 5138 in seconds, and 1973 in milliseconds.
const leastMilliseconds = 100_000_000_000

// read takes plain decimal numbers only: the text is what was signed, and must have one meaning.
func (u Unit) read(text string) (time.Time, error) {
	if u == RFC3339 {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return time.Time{}, fmt.Errorf("no time like 2026-01-02T15:04:05Z: %.40q", text)
		}
		return at.UTC(), nil
	}
	n, err := strconv.ParseUint(text, 10, 50)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return time.Time{}, fmt.Errorf("no time in Unix %s: %.40q", u, text)
	}
	if u == Milliseconds || u == Magnitude && n >= leastMilliseconds {
		return time.UnixMilli(int64(n)).UTC(), nil
	}
	if n >= 1<<40 {
		return time.Time{}, fmt.Errorf("no time in Unix seconds: %.40q", text)
	}
	return time.Unix(int64(n), 0).UTC(), nil
}

func (u Unit) write(at time.Time) string {
	switch u {
	case Milliseconds:
		return strconv.FormatInt(at.UnixMilli(), 10)
	case RFC3339:
		return at.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return strconv.FormatInt(at.Unix(), 10)
}

// String is the unit's word.
func (u Unit) String() string {
	return [...]string{"seconds", "milliseconds", "RFC 3339", "seconds or milliseconds"}[u]
}
