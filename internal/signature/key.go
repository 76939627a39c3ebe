package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // Braintree's keys are made so
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
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
	if strings.HasSuffix(string(secret), DemoMark) {
		return secret, nil
	}
	text, stripped := string(secret), false
	for _, prefix := range k.Strip {
		if rest, ok := strings.CutPrefix(text, prefix); ok {
			text, stripped = rest, true
			break
		}
	}
	if !stripped && k.PlainElse {
		return secret, nil
	}
	switch k.Form {
	case KeyBase64:
		b, err := anyBase64(text)
		if err != nil {
			return nil, errors.New("the secret is not base64; copy it whole, as the provider shows it")
		}
		return b, nil
	case KeyHex:
		b, err := hex.DecodeString(text)
		if err != nil {
			return nil, errors.New("the secret is not hexadecimal; copy it whole, as the provider shows it")
		}
		return b, nil
	case KeySHA1:
		sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
		return sum[:], nil
	case KeyNFKD:
		return norm.NFKD.Bytes([]byte(text)), nil
	}
	return []byte(text), nil
}

func anyBase64(text string) ([]byte, error) {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
	return base64.RawStdEncoding.DecodeString(text)
}

// DemoMark ends the secrets of `postern dev`, which everybody knows; whoever reads configuration for anything else refuses them. Such
// a text is a key as it stands, whatever form keys have, and a key pair is made of it, so that every sender can be tried.
const DemoMark = "_for_postern_dev"

// CheckSecret tells why a text cannot be a secret of this scheme; nil if it can.
func (s *Scheme) CheckSecret(secret []byte) error {
	if len(secret) == 0 {
		return errors.New("it is empty; an empty secret would let anyone sign")
	}
	if s.asymmetric() {
		_, err := s.publicKey(secret)
		return err
	}
	key, err := s.Key.of(secret)
	if err == nil && len(key) == 0 {
		err = errors.New("it holds no key")
	}
	return err
}

func (s *Scheme) asymmetric() bool {
	return s.Method == Ed25519 || s.Method == ECDSA || s.Method == RSA
}

// publicKey reads a public key: PEM, or base64 of its DER; for Ed25519 also its 32 bytes in hexadecimal or base64, with or without
// whpk_. Of a private key, which only a sender has, it is the public half.
func (s *Scheme) publicKey(secret []byte) (crypto.PublicKey, error) {
	if private, err := s.privateKey(secret); err == nil {
		return private.Public(), nil
	}
	der, err := s.keyBytes(secret, "whpk_")
	if err != nil {
		return nil, err
	}
	if s.Method == Ed25519 && len(der) == ed25519.PublicKeySize {
		return ed25519.PublicKey(der), nil
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, s.badKey()
	}
	switch key := key.(type) {
	case ed25519.PublicKey:
		if s.Method == Ed25519 {
			return key, nil
		}
	case *ecdsa.PublicKey:
		if s.Method == ECDSA {
			return key, nil
		}
	case *rsa.PublicKey:
		if s.Method == RSA {
			return key, nil
		}
	}
	return nil, s.badKey()
}

func (s *Scheme) badKey() error {
	what := map[Method]string{Ed25519: "an Ed25519 public key (PEM, hexadecimal, base64 or whpk_...)", ECDSA: "an ECDSA public key (PEM, or base64 as the provider shows it)", RSA: "an RSA public key (PEM, or base64)"}
	return fmt.Errorf("it is not %s", what[s.Method])
}

// keyBytes are a key's bytes out of PEM, hexadecimal or base64.
func (s *Scheme) keyBytes(secret []byte, prefix string) ([]byte, error) {
	if block, _ := pem.Decode(secret); block != nil {
		return block.Bytes, nil
	}
	text := strings.TrimSpace(strings.TrimPrefix(string(secret), prefix))
	if b, err := hex.DecodeString(text); err == nil && s.Method == Ed25519 {
		return b, nil
	}
	b, err := anyBase64(text)
	if err != nil {
		return nil, s.badKey()
	}
	return b, nil
}

// privateKey reads the key that a sender signs with: PEM or whsk_..., or one made of a demo secret.
func (s *Scheme) privateKey(secret []byte) (crypto.Signer, error) {
	if strings.HasSuffix(string(secret), DemoMark) {
		return s.demoKey(secret)
	}
	if rest, ok := strings.CutPrefix(string(secret), "whsk_"); ok && s.Method == Ed25519 {
		b, err := anyBase64(rest)
		switch {
		case err == nil && len(b) == ed25519.SeedSize:
			return ed25519.NewKeyFromSeed(b), nil
		case err == nil && len(b) == ed25519.PrivateKeySize:
			return ed25519.NewKeyFromSeed(b[:ed25519.SeedSize]), nil
		}
		return nil, errors.New("whsk_ is followed by base64 of 32 or 64 bytes")
	}
	block, _ := pem.Decode(secret)
	if block == nil {
		return nil, errors.New("to sign, a private key is needed (PEM, or whsk_... for Ed25519); the configured one only verifies")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the PEM holds no private key in PKCS #8")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the private key cannot sign")
	}
	return signer, s.fits(signer)
}

func (s *Scheme) fits(key crypto.Signer) error {
	var ok bool
	switch s.Method {
	case Ed25519:
		_, ok = key.(ed25519.PrivateKey)
	case ECDSA:
		_, ok = key.(*ecdsa.PrivateKey)
	case RSA:
		_, ok = key.(*rsa.PrivateKey)
	}
	if !ok {
		return s.badKey()
	}
	return nil
}

func (s *Scheme) demoKey(secret []byte) (crypto.Signer, error) {
	seed := sha256.Sum256(secret)
	switch s.Method {
	case Ed25519:
		return ed25519.NewKeyFromSeed(seed[:]), nil
	case ECDSA:
		seed[0] &= 0x7f // below the curve's order
		return ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	}
	return nil, errors.New("there are no demo keys for RSA")
}
