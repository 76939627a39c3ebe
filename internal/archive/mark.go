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

// marks tell the entries of a file apart where nothing in them does: by the file's name, and by what the file holds up to the end of the entry. A file that is
// read again, or has grown, has the same marks, whenever it was changed and wherever it lies; another of the same name has others from where it differs.
type marks struct {
	name string
	read hash.Hash
}

func newMarks(name string, head []byte) *marks {
	m := &marks{name: name, read: sha256.New()}
	m.add(head)
	return m
}

// add is told what an entry is in the file. How its last line ends says nothing: that changes when a file grows.
func (m *marks) add(raw []byte) {
	m.read.Write(bytes.TrimRight(raw, "\r\n"))
	m.read.Write([]byte{'\n'})
}

// mark is that of one entry.
type mark [sha256.Size]byte

// of is the mark of an entry. One that is a file of its own in a folder is told apart by its name and what it holds, whatever lies beside it.
func (m *marks) of(e *entry) mark {
	if e.file != "" {
		alone := newMarks(m.name, []byte(filepath.Base(e.file)))
		alone.add(e.delivery.Body)
		return alone.of(&entry{})
	}
	return sha256.Sum256(m.read.Sum(append([]byte(m.name), 0)))
}

// key names the event of a row.
func (m *marks) key(row int, of mark) string { return fmt.Sprintf("%s#%d-%x", m.name, row, of[:8]) }

// receipt is a time that no other entry has. A provider tells the events by it that its sender does not tell apart; it is kept nowhere.
func (m mark) receipt() time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(m[:8]))) }

// markName is the name of a file as marks have it: however it was compressed.
func markName(file string) string {
	return strings.TrimSuffix(strings.TrimSuffix(file, ".gz"), ".zst")
}
