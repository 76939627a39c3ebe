package signature

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // Braintree's keys are made so
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// Key is how the key of a MAC is made of the secret's text.
type Key struct {
	Form KeyForm
	// Strip are prefixes of which the first that fits is left out ("whsec_").
	Strip []string
	// PlainElse: a secret that has none of the prefixes is the key as it stands, whatever Form says.
	PlainElse bool
	// Prefixed: a secret that has none of the prefixes is no key; of a key pair, one that is neither PEM nor begins with whpk_ or
	// whsk_. A source that takes shared secrets and public keys alike needs it: a public key that were taken for a shared secret
	// would let everyone sign.
	Prefixed bool
}

// KeyForm is how a secret's text stands for the key's bytes.
type KeyForm int

// The forms.
const (
	// KeyText is the text itself.
	KeyText KeyForm = iota
	// KeyBase64 is base64 of the key, with or without padding.
	KeyBase64
	// KeyHex is hexadecimal of the key.
	KeyHex
	// KeySHA1 is a text whose SHA-1 is the key.
	KeySHA1
	// KeyNFKD is a text that is normalised to NFKD first.
	KeyNFKD
)

// of makes the key's bytes.
func (k Key) of(secret []byte) ([]byte, error) {
	if bytes.HasSuffix(secret, []byte(DemoMark)) {
		return secret, nil
	}
	if isKeyPair(secret) {
		return nil, errors.New("it is a public or a private key; the sender signs with a shared secret")
	}
	text, stripped := secret, false
	for _, prefix := range k.Strip {
		if text, stripped = bytes.CutPrefix(secret, []byte(prefix)); stripped {
			break
		}
	}
	if !stripped && k.Prefixed {
		return nil, fmt.Errorf("it does not begin with %s; copy it whole, as the provider shows it", strings.Join(k.Strip, " or "))
	}
	if !stripped && k.PlainElse {
		return secret, nil
	}
	switch k.Form {
	case KeyBase64:
		b, err := anyBase64(string(text))
		if err != nil {
			return nil, errors.New("it is not base64; copy it whole, as the provider shows it")
		}
		return b, nil
	case KeyHex:
		b, err := hex.DecodeString(string(text))
		if err != nil {
			return nil, errors.New("it is not hexadecimal; copy it whole, as the provider shows it")
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

// isKeyPair tells whether a text says of itself that it is half of a key pair. Taken for a shared secret, a public key would let
// everyone sign.
func isKeyPair(text []byte) bool {
	if bytes.HasPrefix(text, []byte("whpk_")) || bytes.HasPrefix(text, []byte("whsk_")) || bytes.Contains(text, []byte("-----BEGIN ")) {
		return true
	}
	text = bytes.TrimSpace(text)
	if der, err := hex.DecodeString(string(text)); err == nil && isPublicDER(der) {
		return true
	}
	if !bytes.HasPrefix(text, []byte("M")) { // base64 of a DER sequence
		return false
	}
	der, err := anyBase64(string(text))
	return err == nil && isPublicDER(der)
}

func isPublicDER(der []byte) bool {
	_, err := x509.ParsePKIXPublicKey(der)
	return err == nil
}

func anyBase64(text string) ([]byte, error) {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	return base64.RawStdEncoding.DecodeString(text)
}

// DemoMark ends the secrets of `postern dev`, which everybody knows; whoever reads configuration for anything else refuses them. Such
// a text is a key as it stands, whatever form keys have, and a key pair is made of it, so that every sender can be tried.
const DemoMark = "_for_postern_dev"

// CheckSecret tells why a text cannot be a secret of this scheme; nil if it can. The error holds nothing of the secret.
func (s *Scheme) CheckSecret(secret []byte) error {
	_, err := s.key(secret)
	return err
}

// How many bytes a shared secret has, apart from a prefix that names its kind.
const (
	// MinSecret is the least that a configuration may have. One delivery is enough to try secrets on
	// another machine, and a graphics card tries all printable texts of seven characters in hours.
	MinSecret = 8
	// SafeSecret is the least without a warning: the 112 bits that NIST SP 800-131A requires of the
	// key of an HMAC.
	SafeSecret = 14
)

// SecretSize returns how many bytes of a shared secret an attacker must guess: those of its key,
// without a prefix such as whsec_ and without white space around it. Where the key is a digest of the
// text, the text counts. The answer is false where the scheme has no such secret: it verifies with a
// public key, or the text is no key of the scheme.
func (s *Scheme) SecretSize(secret []byte) (int, bool) {
	k, err := s.key(secret)
	if err != nil || s.Asymmetric() {
		return 0, false
	}
	text := bytes.TrimSpace(secret)
	for _, prefix := range append(slices.Clone(s.Key.Strip), "whsec_") {
		text = bytes.TrimPrefix(text, []byte(prefix))
	}
	return min(len(text), len(k.shared)), true
}
