package signature

import (
	"net/http"
	"strconv"
	"strings"
)

// Bounds of what a header may claim, far above what any sender needs and small enough that a hostile one costs nothing.
const (
	maxHeader     = 8 << 10
	maxSignatures = 32
)

// claim is what a header says, before anything of it is believed.
type claim struct {
	signatures [][]byte
	// timestamp is signed as it was spelled; seconds is its value.
	timestamp string
	seconds   int64
}

// read reads the scheme's header. It must occur once: of two, a proxy and we might each believe another.
func (s *Scheme) read(h http.Header) (claim, error) {
	values := h[http.CanonicalHeaderKey(s.Header)]
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return claim{}, fail(Missing, "no %s header", s.Header)
	case len(values) > 1:
		return claim{}, fail(Malformed, "%d %s headers instead of one", len(values), s.Header)
	case len(values[0]) > maxHeader:
		return claim{}, fail(Malformed, "%s is %d bytes long; at most %d are read", s.Header, len(values[0]), maxHeader)
	case s.Pairs != nil:
		return s.readPairs(values[0])
	}
	return s.readPlain(values[0])
}

// readPlain reads a header that is one signature.
func (s *Scheme) readPlain(value string) (claim, error) {
	b, err := s.Encoding.decode(value)
	if err != nil {
		return claim{}, fail(Malformed, "%s cannot be decoded: %v", s.Header, err)
	}
	if want := s.Digest().Size(); len(b) != want {
		return claim{}, fail(Malformed, "%s holds %d bytes instead of %d", s.Header, len(b), want)
	}
	return claim{signatures: [][]byte{b}}, nil
}

// readPairs reads a header that is a list of key=value items. Signatures that cannot be decoded are passed over like
// those of other schemes: the sender may have added one that is not ours to read.
func (s *Scheme) readPairs(value string) (claim, error) {
	var c claim
	for item := range strings.SplitSeq(value, ",") {
		key, text, ok := strings.Cut(item, "=")
		if !ok {
			return claim{}, fail(Malformed, "%s has an item that is not key=value", s.Header)
		}
		switch key {
		case s.Pairs.Timestamp:
			if err := s.readTimestamp(&c, text); err != nil {
				return claim{}, err
			}
		case s.Pairs.Signature:
			if b, err := s.Encoding.decode(text); err == nil {
				c.signatures = append(c.signatures, b)
			}
		}
		if len(c.signatures) > maxSignatures {
			return claim{}, fail(Malformed, "%s holds more than %d signatures", s.Header, maxSignatures)
		}
	}
	return c, s.complete(c)
}

func (s *Scheme) complete(c claim) error {
	if c.timestamp == "" {
		return fail(Malformed, "%s has no %s= item", s.Header, s.Pairs.Timestamp)
	}
	if len(c.signatures) == 0 {
		return fail(Malformed, "%s has no readable %s= item", s.Header, s.Pairs.Signature)
	}
	return nil
}

// readTimestamp takes plain decimal seconds only: the text is what was signed, and must have one meaning.
func (s *Scheme) readTimestamp(c *claim, text string) error {
	if c.timestamp != "" {
		return fail(Malformed, "%s has several %s= items", s.Header, s.Pairs.Timestamp)
	}
	n, err := strconv.ParseUint(text, 10, 40)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return fail(Malformed, "%s has a %s= that is not a time in Unix seconds", s.Header, s.Pairs.Timestamp)
	}
	c.timestamp, c.seconds = text, int64(n)
	return nil
}
