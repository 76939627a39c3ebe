package config

// Scheme is how the sender of a source with provider: hmac signs. A sender that is proven by another provider's name has its scheme there.
type Scheme struct {
	// Name is stored with each event that the scheme verified. Leave empty for the method and its digest, e.g. hmac-sha256.
	Name string `yaml:"name,omitempty"`
	// Header is the header with the signature, or a list of headers of which any may have one. A name that ends in # stands for
	// those that end in a number from 1 to 100 instead.
	Header Words `yaml:"header,omitempty"`
	// In is where else the signature may stand, one place or a list: json:PATH, form:FIELD or query:NAME.
	In Words `yaml:"in,omitempty"`
	// Method is hmac, hash (of a message that holds {secret}), ed25519, ecdsa or rsa (the secret is the sender's public key), or
	// token: no signature, the sender shows the secret itself.
	Method string `yaml:"method,omitempty" shown:"hmac"`
	// Digest is the hash: sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" shown:"sha256"`
	// Encoding is how a signature is written: hex, base64, base64url or plain.
	Encoding string `yaml:"encoding,omitempty" shown:"hex; token: plain"`
	// Prefix is what each signature begins with, e.g. 'sha256='. What lacks it is no signature.
	Prefix string `yaml:"prefix,omitempty"`
	// Separator separates items, where the place holds several, e.g. ',' in 't=1,v1=ab'.
	Separator string `yaml:"separator,omitempty"`
	// Spaces: true passes over spaces around items.
	Spaces bool `yaml:"spaces,omitempty" shown:"false"`
	// Assign separates an item's key from its value, e.g. '='. Leave empty where items have no keys.
	Assign string `yaml:"assign,omitempty"`
	// Item is the key of the signatures, e.g. v1; items under other keys prove nothing. Leave empty where each item is a signature.
	Item string `yaml:"item,omitempty"`
	// Group separates groups of items, each with a time of its own.
	Group string `yaml:"group,omitempty"`
	// Skip is how many items come before the signatures, where items have no keys.
	Skip int `yaml:"skip,omitempty" shown:"0"`
	// Key is how the key of the HMAC is made of the secret's text.
	Key SchemeKey `yaml:"key,omitempty"`
	// Message is what is signed: a text with {body}, {timestamp}, {header:NAME}, {json:PATH}, {form:FIELD}, {query:NAME}, {item:KEY},
	// {method}, {url}, {path}, {sorted_form} and, for method hash, {secret} in it. A part in [brackets] is left out where a
	// reference in it finds nothing. Doubled, a brace or bracket stands for itself.
	Message string `yaml:"message,omitempty" shown:"{body}"`
	// Timestamp is the signed time. Leave out where the sender signs none.
	Timestamp SchemeTime `yaml:"timestamp,omitempty"`
	// When is a value by which the sender says that it signed by this scheme, where several of a source's share a place.
	When Condition `yaml:"when,omitempty"`
	// BodyDigest is a digest of the body that is signed in place of the body.
	BodyDigest BodyDigest `yaml:"body_digest,omitempty"`
	// BodyUnsigned: true says that you know that nothing proves the body: it must be set for tokens, and for messages that leave the
	// body out.
	BodyUnsigned bool `yaml:"body_unsigned,omitempty" shown:"false"`
}

// SchemeKey is how the key of the HMAC is made of the secret's text.
type SchemeKey struct {
	// Form is text, base64, hex, sha1 (the key is the SHA-1 of the text) or nfkd (the text is normalised to NFKD).
	Form string `yaml:"form,omitempty" shown:"text"`
	// Strip are prefixes of which the first that fits is left out, e.g. whsec_.
	Strip []string `yaml:"strip,omitempty"`
	// PlainElse: true takes a secret that has none of the prefixes as it stands, whatever form says.
	PlainElse bool `yaml:"plain_else,omitempty" shown:"false"`
}

// SchemeTime is the signed time.
type SchemeTime struct {
	// From is where it stands: header:NAME, item:KEY (a place from 0 where items have no keys), json:PATH, form:FIELD or query:NAME.
	// It must be signed: as {timestamp} in the message, or as a part of the body or the URL.
	From string `yaml:"from,omitempty"`
	// Unit is s, ms, rfc3339, or auto: seconds or milliseconds by their size.
	Unit string `yaml:"unit,omitempty" shown:"s"`
	// Unchecked: true does not judge its age: a captured delivery can then be sent again at any time, as where no time is signed.
	Unchecked bool `yaml:"unchecked,omitempty" shown:"false"`
}

// Condition is a value of a request that must be as it says.
type Condition struct {
	// From is where the value stands: header:NAME, json:PATH, form:FIELD or query:NAME.
	From string `yaml:"from,omitempty"`
	// Is is what it must be.
	Is string `yaml:"is,omitempty"`
}

// BodyDigest is a digest of the body that is signed in place of the body.
type BodyDigest struct {
	// From is where it stands: header:NAME or query:NAME.
	From string `yaml:"from,omitempty"`
	// Digest is sha256, sha1 or sha512.
	Digest string `yaml:"digest,omitempty" shown:"sha256"`
	// Encoding is hex, base64 or base64url.
	Encoding string `yaml:"encoding,omitempty" shown:"hex"`
}
