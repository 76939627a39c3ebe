package signature

import (
	"crypto/hmac"
	"hash"
	"sync"
)

// Keys caches parsed secrets, so that each is parsed once and not for every request. The zero Keys
// is empty. It is safe for concurrent use. It belongs to one source, because it grows with the
// number of secrets.
type Keys struct {
	mu      sync.RWMutex
	entries map[keyID]*parsedKey
}

type keyID struct {
	scheme *Scheme
	secret string
}

// parsedKey is the key of a secret for a scheme, or the error.
type parsedKey struct {
	key
	err error
	// macs are unused HMACs of the key.
	macs sync.Pool
}

// parsed returns the parsed secret for a scheme. Without Keys it parses the secret each time.
func (k *Keys) parsed(s *Scheme, secret []byte) *parsedKey {
	if k == nil {
		return parseKey(s, secret)
	}
	k.mu.RLock()
	entry := k.entries[keyID{s, string(secret)}]
	k.mu.RUnlock()
	if entry != nil {
		return entry
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries == nil {
		k.entries = map[keyID]*parsedKey{}
	}
	entry = parseKey(s, secret)
	k.entries[keyID{s, string(secret)}] = entry
	return entry
}

func parseKey(s *Scheme, secret []byte) *parsedKey {
	k := &parsedKey{}
	k.key, k.err = s.key(secret)
	return k
}

// takeMAC returns an empty HMAC with the key; releaseMAC returns it to the pool.
func (k *parsedKey) takeMAC(d Digest) hash.Hash {
	if h, ok := k.macs.Get().(hash.Hash); ok {
		h.Reset()
		return h
	}
	return hmac.New(d.newHash(), k.shared)
}

func (k *parsedKey) releaseMAC(h hash.Hash) { k.macs.Put(h) }
