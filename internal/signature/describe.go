package signature

import (
	"cmp"
	"fmt"
	"strings"
)

// Describe describes in one sentence how the scheme signs, in Markdown.
func (s *Scheme) Describe() string {
	if s.Method == Token {
		return fmt.Sprintf("A shared token in %s. It verifies the sender, but not the body.", s.describePlaces())
	}
	text := fmt.Sprintf("%s over `%s`, as %s in %s", s.describeMethod(), s.Message, s.Encoding.describe(),
		s.describePlaces())
	if s.Signature.Prefix != "" {
		text += " after `" + s.Signature.Prefix + "`"
	}
	if s.Signature.Item != "" {
		text += " under `" + s.Signature.Item + "`"
	}
	if s.Body != nil {
		text += fmt.Sprintf("; the body by its digest in `%s`", s.Body.From)
	}
	switch {
	case s.Timestamp == nil:
		text += ". No time is signed."
	case s.Timestamp.Unchecked:
		text += fmt.Sprintf(". The time in `%s` is signed, but its age is not checked.", s.Timestamp.From)
	default:
		text += fmt.Sprintf(". The time in `%s` (%s) may differ from the time of receipt by %g s.", s.Timestamp.From,
			s.Timestamp.Unit.describe(), s.tolerance(0).Seconds())
	}
	return text + s.describeKey()
}

func (s *Scheme) describePlaces() string {
	places := make([]string, len(s.Signature.In))
	for i, ref := range s.Signature.In {
		places[i] = "`" + ref.String() + "`"
		if ref.Kind == Header {
			places[i] = "the header `" + ref.Name + "`"
		}
	}
	return strings.Join(places, " or ")
}

func (s *Scheme) describeMethod() string {
	digest := map[Digest]string{SHA1: "SHA-1", SHA512: "SHA-512"}[s.Digest]
	digest = cmp.Or(digest, "SHA-256")
	switch s.Method {
	case Hash:
		return digest
	case Ed25519:
		return "Ed25519"
	case ECDSA:
		return "ECDSA with " + digest
	case RSA:
		return "RSA with " + digest
	}
	return "HMAC-" + digest
}

func (s *Scheme) describeKey() string {
	if s.IsAsymmetric() {
		return " The secret is the sender's public key."
	}
	switch s.Key.Form {
	case KeyBase64:
		return " The key is the secret decoded from base64."
	case KeyHex:
		return " The key is the secret decoded from hexadecimal."
	case KeySHA1:
		return " The key is the SHA-1 of the secret."
	case KeyNFKD:
		return " The key is the secret, normalized to NFKD."
	}
	return ""
}

// describe returns the name of the encoding.
func (e Encoding) describe() string {
	return cmp.Or(map[Encoding]string{Base64: "base64", Base64URL: "URL-safe base64", Plain: "plain text"}[e],
		"hexadecimal")
}
