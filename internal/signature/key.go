package signature

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // Braintree derives its keys with it
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// Key says how the HMAC key is derived from the secret.
type Key struct {
	// Form is the form of the secret. text uses the text itself as the key. base64 and hex decode
	// it. sha1 uses the SHA-1 of the text. nfkd normalizes the text to NFKD.
	Form KeyForm `yaml:"form,omitempty" unset:"text" words:"text base64 hex sha1 nfkd"`
	// Strip are prefixes of the secret, e.g. whsec_. Postern removes the first one that matches.
	Strip []string `yaml:"strip,omitempty"`
	// VerbatimWithoutPrefix: true uses a secret that has none of the prefixes unchanged, and
	// ignores form.
	VerbatimWithoutPrefix bool `yaml:"plain_fallback,omitempty" unset:"false"`

	// RequirePrefix: a secret without any of the prefixes is not a valid key. A public key must be
	// PEM or begin with whpk_, and a private key with whsk_. A source with shared secrets and
	// public keys needs this: a public key that is used as a shared secret would let everyone sign.
	RequirePrefix bool `yaml:"-"`
}

// KeyForm is how a secret's text represents the key's bytes; the zero value is KeyText.
type KeyForm string

// The forms. KeyBase64 may have padding.
const (
	KeyText   KeyForm = "text"
	KeyBase64 KeyForm = "base64"
	KeyHex    KeyForm = "hex"
	KeySHA1   KeyForm = "sha1"
	KeyNFKD   KeyForm = "nfkd"
)

// toBytes returns the key's bytes.
func (k Key) toBytes(secret []byte) ([]byte, error) {
	if bytes.HasSuffix(secret, []byte(DemoSuffix)) {
		return secret, nil
	}
	if isKeyPair(secret) {
		return nil, errors.New("it is a public or a private key, but the sender signs with a shared secret")
	}
	text, stripped := secret, false
	for _, prefix := range k.Strip {
		if text, stripped = bytes.CutPrefix(secret, []byte(prefix)); stripped {
			break
		}
	}
	if !stripped && k.RequirePrefix {
		return nil, fmt.Errorf("it does not begin with %s; copy it completely, as the provider shows it",
			strings.Join(k.Strip, " or "))
	}
	if !stripped && k.VerbatimWithoutPrefix {
		return secret, nil
	}
	switch k.Form {
	case KeyBase64:
		b, err := decodeAnyBase64(string(text))
		if err != nil {
			return nil, errors.New("it is not base64; copy it completely, as the provider shows it")
		}
		return b, nil
	case KeyHex:
		b, err := hex.DecodeString(string(text))
		if err != nil {
			return nil, errors.New("it is not hexadecimal; copy it completely, as the provider shows it")
		}
		return b, nil
	case KeySHA1:
		sum := sha1.Sum(text) //nolint:gosec // see the import
		return sum[:], nil
	case KeyNFKD:
		return norm.NFKD.Bytes(text), nil
	}
	return text, nil
}

// isKeyPair reports whether a text is recognizable as half of a key pair. A public key that is used
// as a shared secret would let everyone sign.
func isKeyPair(text []byte) bool {
	if bytes.HasPrefix(text, []byte("whpk_")) || bytes.HasPrefix(text, []byte("whsk_")) ||
		bytes.Contains(text, []byte("-----BEGIN ")) {
		return true
	}
	text = bytes.TrimSpace(text)
	if der, err := hex.DecodeString(string(text)); err == nil && isPublicDER(der) {
		return true
	}
	if !bytes.HasPrefix(text, []byte("M")) { // base64 of a DER sequence
		return false
	}
	der, err := decodeAnyBase64(string(text))
	return err == nil && isPublicDER(der)
}

func isPublicDER(der []byte) bool {
	_, err := x509.ParsePKIXPublicKey(der)
	return err == nil
}

func decodeAnyBase64(text string) ([]byte, error) {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	return base64.RawStdEncoding.DecodeString(text)
}

// DemoSuffix ends the public demo secrets of `postern dev`. Any other configuration rejects them.
// Such a text is the key itself, whatever the form of keys. A key pair is derived from it for
// public-key schemes, so that every sender can be tried.
const DemoSuffix = "_for_postern_dev"

// CheckSecret returns why a text cannot be a secret of this scheme; nil if it can. The error
// contains nothing of the secret.
func (s *Scheme) CheckSecret(secret []byte) error {
	_, err := s.key(secret)
	return err
}

// Sizes of a shared secret in bytes, without a prefix for its kind.
const (
	// MinSecret is the minimum in a configuration. One delivery is enough to try secrets on another
	// machine, and a graphics card tries all printable texts of seven characters in hours.
	MinSecret = 8
	// RecommendedSecret is the minimum without a warning: the 112 bits that NIST SP 800-131A
	// requires of the key of an HMAC.
	RecommendedSecret = 14
)

// SecretSize returns how many bytes of a shared secret an attacker must guess: those of its key,
// without a prefix such as whsec_ and surrounding white space. If the key is a digest of the text,
// the text counts. It returns false if the scheme verifies with a public key, or if the text is not
// a key of the scheme.
func (s *Scheme) SecretSize(secret []byte) (int, bool) {
	k, err := s.key(secret)
	if err != nil || s.IsAsymmetric() {
		return 0, false
	}
	text := bytes.TrimSpace(secret)
	for _, prefix := range append(slices.Clone(s.Key.Strip), "whsec_") {
		text = bytes.TrimPrefix(text, []byte(prefix))
	}
	return min(len(text), len(k.shared)), true
}
