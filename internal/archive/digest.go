package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"path/filepath"
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

func newFileDigest(name string, head []byte) *fileDigest {
	m := &fileDigest{name: name, hash: sha256.New()}
	m.add(head)
	return m
}

// add adds an entry's text. The line end is normalized, because it changes when a file grows.
func (m *fileDigest) add(raw []byte) {
	m.hash.Write(bytes.TrimRight(raw, "\r\n"))
	m.hash.Write([]byte{'\n'})
}

// entryDigest identifies one entry.
type entryDigest [sha256.Size]byte

// entryDigest returns the digest of an entry. An entry that is a file of a folder is identified by
// its name and contents alone.
func (m *fileDigest) entryDigest(e *entry) entryDigest {
	if e.file != "" {
		single := newFileDigest(m.name, []byte(filepath.Base(e.file)))
		single.add(e.delivery.Body)
		return single.entryDigest(&entry{})
	}
	return sha256.Sum256(m.hash.Sum(append([]byte(m.name), 0)))
}

// rowKey returns the key of a row's event.
func (m *fileDigest) rowKey(row int, digest entryDigest) string {
	return fmt.Sprintf("%s#%d-%x", m.name, row, digest[:8])
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
