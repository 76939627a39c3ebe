// Package idempotency executes a request with an idempotency key once, as
// draft-ietf-httpapi-idempotency-key-header-07 defines it. The same request gets the response of
// the first one. A different request with the key is rejected, and so is one that arrives while the
// first is in progress. The admin API calls it.
package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// The reasons to reject a request.
var (
	// ErrInProgress: the key's request is in progress. Respond with status 409.
	ErrInProgress = errors.New("a request with this key is in progress")
	// ErrKeyReused: the key was used for a different request. Respond with status 422.
	ErrKeyReused = errors.New("the key was used for a different request")
)

// Fingerprint returns a digest of a request's parts and their lengths, to compare two requests with
// the same key.
func Fingerprint(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p)))) // a hash never returns an error
		_, _ = h.Write(p)
	}
	return h.Sum(nil)
}
