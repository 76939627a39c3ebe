// Package signature proves that a delivery was made by someone who holds a secret. A scheme is data: which digest, where
// the signature sits and how it is written, which bytes it covers, and how old it may be. The package knows no provider.
package signature

import (
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Scheme says how a sender signs: an HMAC over Message, written into Header.
type Scheme struct {
	// Name is stored with what the scheme verified, e.g. "stripe-v1".
	Name string
	// Digest makes the hash under the HMAC.
	Digest func() hash.Hash
	// Encoding is how the bytes of a signature are written.
	Encoding Encoding
	// Header carries the signature.
	Header string
	// Pairs is set where the header is a list of key=value items; nil where it is one bare signature.
	Pairs *Pairs
	// Message is what is signed, part after part.
	Message []Part
}

// Pairs names the items of a header like "t=1700000000,v1=5257a8...": comma-separated, the signature's key repeatable.
// Items under other keys are no proof and are passed over, so that nobody can talk a receiver down to a weaker scheme.
type Pairs struct {
	// Signature is the key of the signatures.
	Signature string
	// Timestamp is the key of the signed time in Unix seconds; it occurs once.
	Timestamp string
}

// Encoding is how bytes are written as text.
type Encoding int

// The encodings of a signature.
const (
	// Hex is written in lower case and read in either.
	Hex Encoding = iota
	// Base64 is the standard alphabet with padding; other spellings of the same bytes are refused.
	Base64
)

var strictBase64 = base64.StdEncoding.Strict()

func (e Encoding) encode(b []byte) string {
	if e == Base64 {
		return strictBase64.EncodeToString(b)
	}
	return hex.EncodeToString(b)
}

func (e Encoding) decode(s string) ([]byte, error) {
	if e == Base64 {
		// The decoder passes over line breaks, even when it is strict.
		if strings.ContainsAny(s, "\r\n") {
			return nil, errors.New("line break in base64")
		}
		return strictBase64.DecodeString(s)
	}
	return hex.DecodeString(s)
}

// Part is one piece of the signed message: a literal text, or one of Timestamp and Body.
type Part struct {
	kind    partKind
	literal string
}

type partKind int

const (
	literalPart partKind = iota
	timestampPart
	bodyPart
)

// Timestamp is the signed time, in the sender's own spelling.
func Timestamp() Part { return Part{kind: timestampPart} }

// Body is the request's body, byte for byte.
func Body() Part { return Part{kind: bodyPart} }

// Literal is a fixed text.
func Literal(text string) Part { return Part{literal: text} }

// Request is what a scheme reads of a delivery.
type Request struct {
	Header     http.Header
	Body       []byte
	ReceivedAt time.Time
}

// sum is the HMAC of the message under one secret.
func (s *Scheme) sum(secret []byte, timestamp string, body []byte, dst []byte) []byte {
	mac := hmac.New(s.Digest, secret)
	for _, p := range s.Message {
		switch p.kind {
		case timestampPart:
			mac.Write([]byte(timestamp))
		case bodyPart:
			mac.Write(body)
		default:
			mac.Write([]byte(p.literal))
		}
	}
	return mac.Sum(dst)
}

// Sign makes the value of the scheme's header for a body, as the sender would at the given time.
func (s *Scheme) Sign(secret, body []byte, at time.Time) string {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	text := s.Encoding.encode(s.sum(secret, timestamp, body, nil))
	if s.Pairs == nil {
		return text
	}
	return s.Pairs.Timestamp + "=" + timestamp + "," + s.Pairs.Signature + "=" + text
}
