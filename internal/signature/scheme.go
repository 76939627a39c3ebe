// Package signature proves that a delivery was made by someone who holds a secret. A scheme is data: which method and digest,
// how the key is made of the secret, where the signature sits and how it is written, which bytes it covers, and how old it may
// be. The package knows no provider.
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

// Scheme says how a sender signs.
type Scheme struct {
	// Name is stored with what the scheme verified, e.g. "stripe-v1".
	Name string
	// Method is how key and message make a signature; the zero value is HMAC.
	Method Method
	// Digest is the hash under the HMAC, or that is signed; the zero value is SHA256.
	Digest Digest
	// Key is how the key is made of the secret's text.
	Key Key
	// Signature is where the signatures sit and how they are written.
	Signature Layout
	// Encoding is how the bytes of one signature are written.
	Encoding Encoding
	// Timestamp is the signed time; nil where the scheme signs none.
	Timestamp *Clock
	// When is a value by which the sender says that it signed by this scheme; nil where the place of the signature says it. Where
	// nothing signs that value, whoever sends chooses the weakest of a source's schemes.
	When *Condition
	// Message is what is signed. A Token scheme has none.
	Message Template
	// Or are other spellings of it, for senders whose own programs try several.
	Or []Template
	// Body is a digest of the body that the signed message carries in place of the body; nil where the body is signed itself.
	Body *BodyDigest
}

// Condition is a value of a request that must be as it says; where Is is empty, it must not be there.
type Condition struct {
	From Ref
	Is   string
}

// Method is how a signature is made.
type Method int

// The methods.
const (
	// HMAC of the message under the key.
	HMAC Method = iota
	// Hash of a message that holds the secret itself, {secret}. Unless the secret ends the message, one signature is enough to sign
	// the message with bytes added to it (Extendable). No reader of JSON takes them, and a reader of forms takes them as fields.
	Hash
	// Ed25519, ECDSA (ASN.1) and RSA (PKCS #1 v1.5) verify with a public key, which is the secret's text. The same message may have
	// several signatures that verify, so that a signature names no delivery; and a key of low order, which only its owner can give,
	// verifies more than its owner signed.
	Ed25519
	ECDSA
	RSA
	// Token is no signature: the sender shows the secret. It proves the sender and nothing of the body.
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

func (d Digest) new() func() hash.Hash {
	switch d {
	case SHA1:
		return sha1.New
	case SHA512:
		return sha512.New
	}
	return sha256.New
}

// size is how many bytes a digest has.
func (d Digest) size() int {
	switch d {
	case SHA1:
		return sha1.Size
	case SHA512:
		return sha512.Size
	}
	return sha256.Size
}

func (d Digest) of(b []byte) []byte {
	h := d.new()()
	h.Write(b)
	return h.Sum(nil)
}

func (d Digest) crypto() crypto.Hash {
	return [...]crypto.Hash{crypto.SHA256, crypto.SHA1, crypto.SHA512}[d]
}

// Layout is where signatures sit and how they are written there.
type Layout struct {
	// In are the places, most often one header. Any that is there counts; one must be. A header's name that ends in # stands
	// for those that end in a number from 1 to 100 instead.
	In []Ref
	// Prefix is what each signature begins with ("sha256="). It is not optional: what lacks it is no signature.
	Prefix string
	// Group separates groups of items, each with a time of its own; empty: there is one group.
	Group string
	// Separator separates items; empty: there is one item, the signature.
	Separator string
	// Spaces: spaces around items are passed over.
	Spaces bool
	// Assign separates an item's key from its value; empty: items have no keys and are known by their place.
	Assign string
	// Item is the key of the signatures where items have keys. Items under other keys are no proof and are passed over, so that
	// nobody can talk a receiver down to a weaker scheme. Empty: each item is a signature, and its key says whose.
	Item string
	// Skip is how many items come before the signatures where items have no keys.
	Skip int
}

// Clock is where a signed time is found and how it is read.
type Clock struct {
	// From is the place. What is found there must be covered by the signature: by the message, or as a part of the body.
	From Ref
	Unit Unit
	// Tolerance is how far the time may lie from the time of receipt, both ways, where the source says nothing; 0: DefaultTolerance.
	Tolerance time.Duration
	// Unchecked: the time is signed, but its age is not judged.
	Unchecked bool
}

// DefaultTolerance is how far a signed time may lie from the time of receipt.
const DefaultTolerance = 300 * time.Second

// BodyDigest is a digest of the body that stands in the request and is signed there.
type BodyDigest struct {
	// From is where it stands, e.g. a parameter of the signed URL.
	From     Ref
	Digest   Digest
	Encoding Encoding
}

// Encoding is how bytes are written as text.
type Encoding int

// The encodings.
const (
	// Hex is written in lower case and read in either.
	Hex Encoding = iota
	// Base64 is the standard alphabet with padding; other spellings of the same bytes are refused.
	Base64
	// Base64URL is the alphabet of URLs, with or without padding.
	Base64URL
	// Plain is the bytes themselves; for tokens.
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
	// The decoders of base64 pass over line breaks, even when they are strict.
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, fmt.Errorf("it is not %s", e)
	}
	return b, nil
}

// Request is what a scheme reads of a delivery.
type Request struct {
	// Method is the request's; empty: POST.
	Method string
	// URL is the whole public address with its query, as the sender was given it; empty where it is not known.
	URL        string
	Header     http.Header
	Body       []byte
	ReceivedAt time.Time
	// Keys remembers what the secrets are good for; nil: each is read anew.
	Keys *Keys
}
