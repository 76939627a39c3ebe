package config

// Scheme says how the sender of a source with provider: hmac signs. Other providers define their
// schemes themselves.
type Scheme struct {
	// Name is stored with each event that the scheme verified. Leave it empty for the method and
	// its digest, e.g. hmac-sha256.
	Name string `yaml:"name,omitempty"`
	// Header is the header with the signature, or a list of headers any of which may have one. A
	// name that ends in # matches headers that end in a number from 1 to 100 instead.
	Header StringList `yaml:"header,omitempty"`
	// In is another place of the signature, one or a list: json:PATH, form:FIELD or query:NAME.
	In StringList `yaml:"in,omitempty"`
	// Method is hmac, hash (of a message that contains {secret}), ed25519, ecdsa or rsa (the secret
	// is the sender's public key), or token (no signature: the sender sends the secret itself).
	Method string `yaml:"method,omitempty" unset:"hmac"`
	// Digest is the hash function: sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" unset:"sha256"`
	// Encoding is the format of a signature: hex, base64, base64url or plain.
	Encoding string `yaml:"encoding,omitempty" unset:"hex; token: plain"`
	// Prefix is the beginning of each signature, e.g. 'sha256='. A value without it is not a
	// signature.
	Prefix string `yaml:"prefix,omitempty"`
	// Separator separates the items of a value with several, e.g. ',' in 't=1,v1=ab'.
	Separator string `yaml:"separator,omitempty"`
	// Spaces: true ignores spaces around items.
	Spaces bool `yaml:"spaces,omitempty" unset:"false"`
	// Assign separates an item's key from its value, e.g. '='. Leave it empty where items have no
	// keys.
	Assign string `yaml:"assign,omitempty"`
	// Item is the key of the signatures, e.g. v1. Items with other keys are not signatures. Leave
	// it empty where each item is a signature.
	Item string `yaml:"item,omitempty"`
	// Group separates groups of items, each with its own time.
	Group string `yaml:"group,omitempty"`
	// Skip is the number of items before the signatures, where items have no keys.
	Skip int `yaml:"skip,omitempty" unset:"0"`
	// Key says how the HMAC key is derived from the secret.
	Key SchemeKey `yaml:"key,omitempty"`
	// Message is the signed text. It may contain {body}, {timestamp}, {header:NAME}, {json:PATH},
	// {form:FIELD}, {query:NAME}, {item:KEY}, {method}, {url}, {path}, {sorted_form} and, for
	// method hash, {secret}. A part in [brackets] is left out if a reference in it has no value.
	// Write a brace or bracket twice to get the character itself.
	Message string `yaml:"message,omitempty" unset:"{body}"`
	// Timestamp is the signed time. Leave it out where the sender signs none.
	Timestamp SchemeTime `yaml:"timestamp,omitempty"`
	// When is a value that identifies this scheme, where several schemes of a source use the same
	// place.
	When Condition `yaml:"when,omitempty"`
	// BodyDigest is a digest of the body that is signed instead of the body.
	BodyDigest BodyDigest `yaml:"body_digest,omitempty"`
	// BodyUnsigned: true accepts that the signature does not cover the body. It is required for
	// tokens, and for messages without the body.
	BodyUnsigned bool `yaml:"body_unsigned,omitempty" unset:"false"`
}

// SchemeKey says how the HMAC key is derived from the secret.
type SchemeKey struct {
	// Form is text, base64, hex, sha1 (the key is the SHA-1 of the text) or nfkd (the text is
	// normalised to NFKD).
	Form string `yaml:"form,omitempty" unset:"text"`
	// Strip are prefixes of the secret. The first that matches is removed, e.g. whsec_.
	Strip []string `yaml:"strip,omitempty"`
	// PlainElse: true uses a secret without any of the prefixes unchanged, whatever form says.
	PlainElse bool `yaml:"plain_else,omitempty" unset:"false"`
}

// SchemeTime is the signed time.
type SchemeTime struct {
	// From is where the time is: header:NAME, item:KEY (a position from 0 where items have no
	// keys), json:PATH, form:FIELD or query:NAME. It must be signed: as {timestamp} in the message,
	// or as a part of the body or the URL.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339 or auto. With auto, the size of a number decides between seconds and
	// milliseconds.
	Unit string `yaml:"unit,omitempty" unset:"s"`
	// Unchecked: true accepts a time of any age. A captured delivery can then be sent again at any
	// time, as with a scheme without a time.
	Unchecked bool `yaml:"unchecked,omitempty" unset:"false"`
}

// Condition is a value that a request must have.
type Condition struct {
	// From is where the value is: header:NAME, json:PATH, form:FIELD or query:NAME.
	From string `yaml:"from,omitempty"`
	// Is is the required value.
	Is string `yaml:"is,omitempty"`
}

// BodyDigest is a digest of the body that is signed instead of the body.
type BodyDigest struct {
	// From is where the digest is: header:NAME or query:NAME.
	From string `yaml:"from,omitempty"`
	// Digest is sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" unset:"sha256"`
	// Encoding is hex, base64 or base64url.
	Encoding string `yaml:"encoding,omitempty" unset:"hex"`
}
