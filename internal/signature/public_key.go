package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// IsAsymmetric reports whether secrets are public keys.
func (s *Scheme) IsAsymmetric() bool {
	return s.Method == Ed25519 || s.Method == ECDSA || s.Method == RSA
}

// publicKey reads a public key: PEM, or base64 of its DER. An Ed25519 key may also be its 32 bytes
// in hexadecimal or base64, with or without whpk_. For a private key, which only a sender has, it
// returns the public half.
func (s *Scheme) publicKey(secret []byte) (crypto.PublicKey, error) {
	if private, err := s.privateKey(secret); err == nil {
		return private.Public(), nil
	}
	if s.Key.RequirePrefix && !bytes.HasPrefix(secret, []byte("whpk_")) &&
		!bytes.Contains(secret, []byte("-----BEGIN ")) {
		return nil, errors.New("it is neither PEM nor begins with whpk_; write whpk_ before the public key, so that " +
			"it is not used as a shared secret")
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
		return nil, s.badKeyError()
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
	return nil, s.badKeyError()
}

func (s *Scheme) badKeyError() error {
	expected := map[Method]string{Ed25519: "an Ed25519 public key (PEM, hexadecimal, base64 or whpk_...)",
		ECDSA: "an ECDSA public key (PEM, or base64 as the provider shows it)",
		RSA:   "an RSA public key (PEM, or base64)"}
	return fmt.Errorf("it is not %s", expected[s.Method])
}

// keyBytes decodes a key from PEM, hexadecimal or base64.
func (s *Scheme) keyBytes(secret []byte, prefix string) ([]byte, error) {
	if block, _ := pem.Decode(secret); block != nil {
		return block.Bytes, nil
	}
	text := strings.TrimSpace(strings.TrimPrefix(string(secret), prefix))
	if strings.HasPrefix(text, "whsec_") {
		return nil, s.badKeyError()
	}
	if b, err := hex.DecodeString(text); err == nil && s.Method == Ed25519 {
		return b, nil
	}
	b, err := decodeAnyBase64(text)
	if err != nil {
		return nil, s.badKeyError()
	}
	return b, nil
}

// privateKey reads the key that a sender signs with: PEM or whsk_..., or a key derived from a demo
// secret.
func (s *Scheme) privateKey(secret []byte) (crypto.Signer, error) {
	if strings.HasSuffix(string(secret), DemoSuffix) {
		return s.demoKey(secret)
	}
	if rest, ok := strings.CutPrefix(string(secret), "whsk_"); ok && s.Method == Ed25519 {
		b, err := decodeAnyBase64(rest)
		switch {
		case err == nil && len(b) == ed25519.SeedSize:
			return ed25519.NewKeyFromSeed(b), nil
		case err == nil && len(b) == ed25519.PrivateKeySize:
			return ed25519.NewKeyFromSeed(b[:ed25519.SeedSize]), nil
		}
		return nil, errors.New("after whsk_, base64 of 32 or 64 bytes is required")
	}
	block, _ := pem.Decode(secret)
	if block == nil {
		return nil, errors.New("to sign, a private key is needed (PEM, or whsk_... for Ed25519); the configured one " +
			"only verifies")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("the PEM has no private key in PKCS #8")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the private key cannot sign")
	}
	return signer, s.checkKeyType(signer)
}

func (s *Scheme) checkKeyType(key crypto.Signer) error {
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
		return s.badKeyError()
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
