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

	"github.com/postern-gateway/postern/internal/settings"
)

// Scheme says how a sender signs. The comments of fields with a key of the configuration are their
// reference for the provider hmac.
type Scheme struct {
	// Name is stored with each event that the scheme verified. Leave it empty for the method and
	// its digest, e.g. hmac-sha256.
	Name string `yaml:"name,omitempty"`
	// Signature is where the signatures are and how they are written.
	Signature Layout `yaml:",inline"`
	// Method is the kind of signature. hmac is an HMAC. hash is a digest of a message that contains
	// {secret}. For ed25519, ecdsa and rsa, the secret is the sender's public key. With token there
	// is no signature: the sender sends the secret itself.
	Method Method `yaml:"method,omitempty" unset:"hmac" words:"hmac hash ed25519 ecdsa rsa token"`
	// Digest is the hash function: sha256, sha1 or sha512.
	Digest Digest `yaml:"digest,omitempty" unset:"sha256" words:"sha256 sha1 sha512"`
	// Encoding is the format of a signature: hex, base64, base64url or plain.
	Encoding Encoding `yaml:"encoding,omitempty" unset:"hex; token: plain" words:"hex base64 base64url plain"`
	// Key says how the HMAC key is derived from the secret.
	Key Key `yaml:"key,omitempty"`
	// Message is the signed text. It may contain {body}, {timestamp}, {header:NAME}, {json:PATH},
	// {form:FIELD}, {query:NAME}, {item:KEY}, {method}, {url}, {path}, {sorted_form} and, for
	// method hash, {secret}. A part in [brackets] is left out if a reference in it has no value.
	// Write a brace or bracket twice to get the character itself.
	Message Template `yaml:"message,omitempty" unset:"{body}" refs:"body timestamp header json form query item method url path sorted_form secret"`
	// Timestamp is the signed time. Leave it out if the sender does not sign a time.
	Timestamp *Clock `yaml:"timestamp,omitempty"`
	// When is a value that identifies this scheme, if several schemes of a source read the
	// signature from the same place.
	When *Condition `yaml:"when,omitempty"`
	// Body is a digest of the body, if the sender signs that digest instead of the body.
	Body *BodyDigest `yaml:"body_digest,omitempty"`
	// BodyUnsigned: true accepts a signature that does not cover the body. It is required for
	// tokens, and for messages without the body.
	BodyUnsigned bool `yaml:"body_unsigned,omitempty" unset:"false"`

	// Or are variants of the message, for senders whose own libraries try several.
	Or []Template `yaml:"-"`
}

// Condition is a value that a request must have. If the value is not signed, a sender can choose
// the weakest scheme of a source.
type Condition struct {
	// From is the place of the value: header:NAME, json:PATH, form:FIELD or query:NAME.
	From Ref `yaml:"from,omitempty" refs:"header json form query"`
	// Is is the required value.
	Is string `yaml:"is,omitempty"` // only in the program: empty if the value must be absent
}

// Method is how a signature is computed; the zero value is HMAC.
type Method string

// The methods.
const (
	// HMAC of the message with the key.
	HMAC Method = "hmac"
	// Hash of a message that contains the secret, {secret}. Unless the secret ends the message,
	// anyone with one signature can sign the message with appended bytes (IsExtendable). JSON
	// parsers reject such bytes; form parsers read them as fields.
	Hash Method = "hash"
	// Ed25519, ECDSA (ASN.1) and RSA (PKCS #1 v1.5) verify with a public key, which is the secret's
	// text. One message may have several valid signatures, so a signature does not identify a
	// delivery. A key of low order, which only its owner can provide, verifies more than its owner
	// signed.
	Ed25519 Method = "ed25519"
	ECDSA   Method = "ecdsa"
	RSA     Method = "rsa"
	// Token is not a signature: the sender sends the secret. It verifies the sender, but not the
	// body.
	Token Method = "token"
)

// Digest is a hash function; the zero value is SHA256.
type Digest string

// The digests.
const (
	SHA256 Digest = "sha256"
	SHA1   Digest = "sha1"
	SHA512 Digest = "sha512"
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
	switch d {
	case SHA1:
		return crypto.SHA1
	case SHA512:
		return crypto.SHA512
	}
	return crypto.SHA256
}

// Layout says where signatures are and how they are written there. At least one place must be
// present. The signatures of all present places are tried.
type Layout struct {
	// Header is the header with the signature, or a list of such headers. A delivery may have the
	// signature in any of them. A name that ends in # matches headers that end in a number from 1
	// to 100 instead.
	Header settings.List[string] `yaml:"header,omitempty"` // Complete moves them into In
	// In is another place of the signature, or a list of places: json:PATH, form:FIELD or
	// query:NAME.
	In settings.List[Ref] `yaml:"in,omitempty" refs:"header json form query"`
	// Prefix is the beginning of each signature, e.g. 'sha256='. A value without it is not a
	// signature.
	Prefix string `yaml:"prefix,omitempty"`
	// Separator separates the items, if a value has several, e.g. ',' in 't=1,v1=ab'.
	Separator string `yaml:"separator,omitempty"`
	// TrimSpaces: true ignores spaces around items.
	TrimSpaces bool `yaml:"spaces,omitempty" unset:"false"`
	// KeySeparator separates an item's key from its value, e.g. '='. Leave it empty if items have
	// no keys.
	KeySeparator string `yaml:"assign,omitempty"`
	// Item is the key of the signatures, e.g. v1. Postern ignores items with other keys when it
	// looks for signatures. Leave it empty if each item is a signature.
	Item string `yaml:"item,omitempty"`
	// Group separates groups of items. Each group has its own time.
	Group string `yaml:"group,omitempty"`
	// Skip is the number of items before the signatures, if items have no keys.
	Skip int `yaml:"skip,omitempty" unset:"0"`
}

// Clock is the signed time.
type Clock struct {
	// From is the place of the time: header:NAME, item:KEY, json:PATH, form:FIELD or query:NAME. If
	// items have no keys, KEY is a position, from 0. The time must be signed: as {timestamp} in the
	// message, or as a part of the body or the URL.
	From Ref `yaml:"from,omitempty" refs:"header item json form query"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern distinguishes seconds from milliseconds by
	// the size of the number.
	Unit Unit `yaml:"unit,omitempty" unset:"s" words:"s ms rfc3339 auto"`
	// Unchecked: true accepts a time of any age. Anyone who captured a delivery can then send it
	// again at any time, as with a scheme without a time.
	Unchecked bool `yaml:"unchecked,omitempty" unset:"false"`

	// Tolerance is how far the time may be from the time of receipt, in both directions, if the
	// source does not set it; 0: DefaultTolerance.
	Tolerance time.Duration `yaml:"-"`
}

// DefaultTolerance is how far a signed time may be from the time of receipt.
const DefaultTolerance = 300 * time.Second

// BodyDigest is a digest of the body, which the sender signs instead of the body.
type BodyDigest struct {
	// From is the place of the digest: header:NAME or query:NAME.
	From Ref `yaml:"from,omitempty" refs:"header query"`
	// Digest is sha256, sha1 or sha512.
	Digest Digest `yaml:"digest,omitempty" unset:"sha256" words:"sha256 sha1 sha512"`
	// Encoding is hex, base64 or base64url.
	Encoding Encoding `yaml:"encoding,omitempty" unset:"hex" words:"hex base64 base64url"`
}

// Encoding is how bytes are encoded as text; the zero value is Hex.
type Encoding string

// The encodings.
const (
	// Hex is written in lower case; both cases are accepted.
	Hex Encoding = "hex"
	// Base64 is the standard alphabet with padding. Other encodings of the same bytes are rejected.
	Base64 Encoding = "base64"
	// Base64URL is the URL-safe alphabet, with or without padding.
	Base64URL Encoding = "base64url"
	// Plain is the bytes themselves; for tokens only.
	Plain Encoding = "plain"
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
		return nil, fmt.Errorf("it is not %s", e.describe())
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
