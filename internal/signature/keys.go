package signature

import (
	"crypto/hmac"
	"hash"
	"sync"
)

// Keys remembers what secrets are good for, so that each is read once and not for every request. The zero Keys is empty; it is used by
// many at once, and belongs to one source, since it grows with the secrets it is shown.
type Keys struct {
	mu    sync.RWMutex
	known map[keyOf]*keyed
}

type keyOf struct {
	scheme *Scheme
	secret string
}

// keyed is what a secret is for a scheme, or why it is nothing.
type keyed struct {
	key
	err error
	// macs has the key's HMACs that nobody uses now.
	macs sync.Pool
}

// of reads a secret for a scheme, or finds it read. Without Keys it is read each time.
func (k *Keys) of(s *Scheme, secret []byte) *keyed {
	if k == nil {
		return newKeyed(s, secret)
	}
	k.mu.RLock()
	known := k.known[keyOf{s, string(secret)}]
	k.mu.RUnlock()
	if known != nil {
		return known
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = map[keyOf]*keyed{}
	}
	known = newKeyed(s, secret)
	k.known[keyOf{s, string(secret)}] = known
	return known
}

func newKeyed(s *Scheme, secret []byte) *keyed {
	k := &keyed{}
	k.key, k.err = s.key(secret)
	return k
}

// mac is an HMAC under the key with nothing written yet; release gives it back.
func (k *keyed) mac(d Digest) hash.Hash {
	if h, ok := k.macs.Get().(hash.Hash); ok {
		h.Reset()
		return h
	}
	return hmac.New(d.new(), k.shared)
}

func (k *keyed) release(h hash.Hash) { k.macs.Put(h) }
