// Package idempotency carries a request that is sent again with its key out once, as draft-ietf-httpapi-idempotency-key-header-07 says: the same request gets the answer of the first, another one
// under the key is refused, and so is one that comes while the first is under way.
package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// The reasons to refuse a request.
var (
	// ErrInFlight: the key's request is under way. Answer 409.
	ErrInFlight = errors.New("a request with this key is under way")
	// ErrOther: the key was used for another request. Answer 422.
	ErrOther = errors.New("the key was used for another request")
)

// Fingerprint is what tells two requests under one key apart: a digest of their parts, with their lengths.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p)))) // a hash takes everything
		_, _ = h.Write(p)
	}
	return h.Sum(nil)
}
