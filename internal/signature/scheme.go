// Package signature verifies that a delivery was signed with a configured secret. A scheme is data:
// method and digest, how the key is derived from the secret, where and how the signature is
// written, which bytes it covers, and how old it may be. The ingest endpoint and the provider
// packages use it. The package knows no provider and stores nothing.
package signature

import (
	"crypto"
	"crypto/sha1" //nolint:gosec // some senders sign with it; HMAC-SHA1 is not broken by its collisions
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"strings"
	"time"
)

// Scheme describes how a sender signs.
type Scheme struct {
	// Name is stored with each verified delivery, e.g. "stripe-v1".
	Name string
	// Method is how a signature is computed from key and message; the zero value is HMAC.
	Method Method
	// Digest is the hash function of the HMAC, or of the signed digest; the zero value is SHA256.
	Digest Digest
	// Key is how the key is derived from the secret's text.
	Key Key
	// Signature is where the signatures are and how they are written.
	Signature Layout
	// Encoding is how the bytes of one signature are encoded.
	Encoding Encoding
	// Timestamp is the signed time; nil if the scheme signs none.
	Timestamp *Clock
	// When is a value by which the sender names this scheme; nil if the place of the signature is
	// enough. If the value is not signed, a sender can choose the weakest scheme of a source.
	When *Condition
	// Message is the signed message. A Token scheme has none.
	Message Template
	// Or are variants of the message, for senders whose own libraries try several.
	Or []Template
	// Body is a digest of the body that is signed instead of the body; nil if the body itself is
	// signed.
	Body *BodyDigest
}

// Condition requires a value in a request. If Is is empty, the value must be absent.
type Condition struct {
	From Ref
	Is   string
}

// Method is how a signature is computed.
type Method int

// The methods.
const (
	// HMAC of the message with the key.
	HMAC Method = iota
	// Hash of a message that contains the secret, {secret}. Unless the secret ends the message,
	// anyone with one signature can sign the message with appended bytes (IsExtendable). JSON
	// parsers reject such bytes; form parsers read them as fields.
	Hash
	// Ed25519, ECDSA (ASN.1) and RSA (PKCS #1 v1.5) verify with a public key, which is the secret's
	// text. One message may have several valid signatures, so a signature does not identify a
	// delivery. A key of low order, which only its owner can provide, verifies more than its owner
	// signed.
	Ed25519
	ECDSA
	RSA
	// Token is not a signature: the sender sends the secret. It verifies the sender, but not the
	// body.
	Token
)

// Digest is a hash function.
type Digest int

// The digests.
const (
	SHA256 Digest = iota
	SHA1
	SHA512
)

func (d Digest) newHash() func() hash.Hash {
	switch d {
	case SHA1:
		return sha1.New
	case SHA512:
		return sha512.New
	}
	return sha256.New
}

// size returns how many bytes a digest has.
func (d Digest) size() int {
	switch d {
	case SHA1:
		return sha1.Size
	case SHA512:
		return sha512.Size
	}
	return sha256.Size
}

func (d Digest) sum(b []byte) []byte {
	h := d.newHash()()
	h.Write(b)
	return h.Sum(nil)
}

func (d Digest) crypto() crypto.Hash {
	return [...]crypto.Hash{crypto.SHA256, crypto.SHA1, crypto.SHA512}[d]
}

// Layout describes where signatures are and how they are written there.
type Layout struct {
	// In are the places, usually one header. At least one must be present. The signatures of all
	// present places are tried. A header name that ends in # stands for the headers that end in a
	// number from 1 to 100.
	In []Ref
	// Prefix is the required prefix of each signature ("sha256=").
	Prefix string
	// Group separates groups of items, each with its own time; "": there is one group.
	Group string
	// Separator separates items; "": the signature is the only item.
	Separator string
	// TrimSpaces: spaces around items are ignored.
	TrimSpaces bool
	// KeySeparator separates an item's key from its value; "": items have no keys and are
	// identified by their index.
	KeySeparator string
	// Item is the key of the signatures, if items have keys. Items with other keys are ignored, so
	// that a sender cannot force a weaker scheme. "": each item is a signature, and its key names
	// the signer.
	Item string
	// Skip is how many items precede the signatures, if items have no keys.
	Skip int
}

// Clock describes where a signed time is and how it is read.
type Clock struct {
	// From is the place. The signature must cover the value there: directly in the message, or as a
	// part of the body.
	From Ref
	Unit Unit
	// Tolerance is how far the time may be from the time of receipt, in both directions, if the
	// source does not set it; 0: DefaultTolerance.
	Tolerance time.Duration
	// Unchecked: the time is signed, but its age is not checked.
	Unchecked bool
}

// DefaultTolerance is how far a signed time may be from the time of receipt.
const DefaultTolerance = 300 * time.Second

// BodyDigest is a digest of the body that is in the request and is signed there.
type BodyDigest struct {
	// From is where the digest is, e.g. a parameter of the signed URL.
	From     Ref
	Digest   Digest
	Encoding Encoding
}

// Encoding is how bytes are encoded as text.
type Encoding int

// The encodings.
const (
	// Hex is written in lower case; both cases are accepted.
	Hex Encoding = iota
	// Base64 is the standard alphabet with padding. Other encodings of the same bytes are rejected.
	Base64
	// Base64URL is the URL-safe alphabet, with or without padding.
	Base64URL
	// Plain is the bytes themselves; for tokens only.
	Plain
)

var (
	strictBase64    = base64.StdEncoding.Strict()
	strictBase64URL = base64.RawURLEncoding.Strict()
)

func (e Encoding) encode(b []byte) string {
	switch e {
	case Base64:
		return strictBase64.EncodeToString(b)
	case Base64URL:
		return strictBase64URL.EncodeToString(b)
	case Plain:
		return string(b)
	}
	return hex.EncodeToString(b)
}

func (e Encoding) decode(s string) (b []byte, err error) {
	switch e {
	case Base64:
		b, err = strictBase64.DecodeString(s)
	case Base64URL:
		b, err = strictBase64URL.DecodeString(strings.TrimRight(s, "="))
	case Plain:
		return []byte(s), nil
	default:
		b, err = hex.DecodeString(s)
	}
	// The base64 decoders ignore line breaks even in strict mode.
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, fmt.Errorf("it is not %s", e)
	}
	return b, nil
}

// Request is the part of a delivery that a scheme reads.
type Request struct {
	// Method is the HTTP method; "": POST.
	Method string
	// URL is the complete public URL with its query, as configured at the sender; "" if it is not
	// known.
	URL        string
	Header     http.Header
	Body       []byte
	ReceivedAt time.Time
	// Keys caches parsed secrets; nil: each is parsed every time.
	Keys *Keys
}
