package config

// Scheme says how the sender of a source with provider: hmac signs. Other providers define their
// schemes themselves.
type Scheme struct {
	// Name is stored with each event that the scheme verified. Leave it empty for the method and
	// its digest, e.g. hmac-sha256.
	Name string `yaml:"name,omitempty"`
	// Header is the header with the signature, or a list of such headers. A delivery may have the
	// signature in any of them. A name that ends in # matches headers that end in a number from 1
	// to 100 instead.
	Header StringList `yaml:"header,omitempty"`
	// In is another place of the signature, or a list of places: json:PATH, form:FIELD or
	// query:NAME.
	In StringList `yaml:"in,omitempty"`
	// Method is the kind of signature. hmac is an HMAC. hash is a digest of a message that contains
	// {secret}. For ed25519, ecdsa and rsa, the secret is the sender's public key. With token there
	// is no signature: the sender sends the secret itself.
	Method string `yaml:"method,omitempty" unset:"hmac"`
	// Digest is the hash function: sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" unset:"sha256"`
	// Encoding is the format of a signature: hex, base64, base64url or plain.
	Encoding string `yaml:"encoding,omitempty" unset:"hex; token: plain"`
	// Prefix is the beginning of each signature, e.g. 'sha256='. A value without it is not a
	// signature.
	Prefix string `yaml:"prefix,omitempty"`
	// Separator separates the items, if a value has several, e.g. ',' in 't=1,v1=ab'.
	Separator string `yaml:"separator,omitempty"`
	// Spaces: true ignores spaces around items.
	Spaces bool `yaml:"spaces,omitempty" unset:"false"`
	// Assign separates an item's key from its value, e.g. '='. Leave it empty if items have no
	// keys.
	Assign string `yaml:"assign,omitempty"`
	// Item is the key of the signatures, e.g. v1. Postern ignores items with other keys when it
	// looks for signatures. Leave it empty if each item is a signature.
	Item string `yaml:"item,omitempty"`
	// Group separates groups of items. Each group has its own time.
	Group string `yaml:"group,omitempty"`
	// Skip is the number of items before the signatures, if items have no keys.
	Skip int `yaml:"skip,omitempty" unset:"0"`
	// Key says how the HMAC key is derived from the secret.
	Key SchemeKey `yaml:"key,omitempty"`
	// Message is the signed text. It may contain {body}, {timestamp}, {header:NAME}, {json:PATH},
	// {form:FIELD}, {query:NAME}, {item:KEY}, {method}, {url}, {path}, {sorted_form} and, for
	// method hash, {secret}. A part in [brackets] is left out if a reference in it has no value.
	// Write a brace or bracket twice to get the character itself.
	Message string `yaml:"message,omitempty" unset:"{body}"`
	// Timestamp is the signed time. Leave it out if the sender does not sign a time.
	Timestamp SchemeTime `yaml:"timestamp,omitempty"`
	// When is a value that identifies this scheme, if several schemes of a source read the
	// signature from the same place.
	When Condition `yaml:"when,omitempty"`
	// BodyDigest is a digest of the body, if the sender signs that digest instead of the body.
	BodyDigest BodyDigest `yaml:"body_digest,omitempty"`
	// BodyUnsigned: true accepts a signature that does not cover the body. It is required for
	// tokens, and for messages without the body.
	BodyUnsigned bool `yaml:"body_unsigned,omitempty" unset:"false"`
}

// SchemeKey says how the HMAC key is derived from the secret.
type SchemeKey struct {
	// Form is the form of the secret. text uses the text itself as the key. base64 and hex decode
	// it. sha1 uses the SHA-1 of the text. nfkd normalizes the text to NFKD.
	Form string `yaml:"form,omitempty" unset:"text"`
	// Strip are prefixes of the secret, e.g. whsec_. Postern removes the first one that matches.
	Strip []string `yaml:"strip,omitempty"`
	// PlainElse: true uses a secret that has none of the prefixes unchanged, and ignores form.
	PlainElse bool `yaml:"plain_fallback,omitempty" unset:"false"`
}

// SchemeTime is the signed time.
type SchemeTime struct {
	// From is the place of the time: header:NAME, item:KEY, json:PATH, form:FIELD or query:NAME. If
	// items have no keys, KEY is a position, from 0. The time must be signed: as {timestamp} in the
	// message, or as a part of the body or the URL.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339 or auto. With auto, Postern distinguishes seconds from milliseconds by
	// the size of the number.
	Unit string `yaml:"unit,omitempty" unset:"s"`
	// Unchecked: true accepts a time of any age. Anyone who captured a delivery can then send it
	// again at any time, as with a scheme without a time.
	Unchecked bool `yaml:"unchecked,omitempty" unset:"false"`
}

// Condition is a value that a request must have.
type Condition struct {
	// From is the place of the value: header:NAME, json:PATH, form:FIELD or query:NAME.
	From string `yaml:"from,omitempty"`
	// Is is the required value.
	Is string `yaml:"is,omitempty"`
}

// BodyDigest is a digest of the body, which the sender signs instead of the body.
type BodyDigest struct {
	// From is the place of the digest: header:NAME or query:NAME.
	From string `yaml:"from,omitempty"`
	// Digest is sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" unset:"sha256"`
	// Encoding is hex, base64 or base64url.
	Encoding string `yaml:"encoding,omitempty" unset:"hex"`
}
