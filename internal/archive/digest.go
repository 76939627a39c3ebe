package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strings"
	"time"
)

// fileDigest distinguishes entries of a file that have no key: by the file's name, and by the
// file's contents up to the end of the entry. A file that is read again, or has grown, has the same
// digests, whatever its time and folder. Another file of the same name has other digests from the
// first difference on.
type fileDigest struct {
	name string
	hash hash.Hash
}

// add adds an entry's text. The line end is normalized, because it changes when a file grows.
func (m *fileDigest) add(raw []byte) {
	m.hash.Write(bytes.TrimRight(raw, "\r\n"))
	m.hash.Write([]byte{'\n'})
}

// entryDigest identifies one entry.
type entryDigest [sha256.Size]byte

// entryDigest returns the digest of the entry that was added last.
func (m *fileDigest) entryDigest() entryDigest {
	return sha256.Sum256(m.hash.Sum(append([]byte(m.name), 0)))
}

// syntheticReceipt returns a time that no other entry has. A provider derives keys from it for
// events that are otherwise equal. It is not stored.
func (m entryDigest) syntheticReceipt() time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(m[:8])))
}

// uncompressedName returns the name of a file without the suffix of its compression.
func uncompressedName(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".gz"), ".zst")
}
