package archive

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
)

// badFile collects the entries that are not events, unchanged. It is created with the first of
// them. Existing contents are never overwritten. They are accepted if they equal the entries that
// an earlier run of the same import wrote; otherwise they are an error.
type badFile struct {
	path   string
	dryRun bool
	file   *os.File
	// unmatched is how many existing bytes are not compared yet.
	unmatched int64
}

func (b *badFile) add(raw []byte) error {
	if b.path == "" || b.dryRun || len(raw) == 0 {
		return nil
	}
	if b.file == nil {
		if err := b.open(); err != nil {
			return err
		}
	}
	if raw[len(raw)-1] != '\n' { // the last entry of its file
		raw = append(slices.Clip(raw), '\n')
	}
	return b.put(raw)
}

func (b *badFile) open() (err error) {
	if b.file, err = os.OpenFile(b.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	info, err := b.file.Stat()
	if err == nil && info.Mode().IsRegular() {
		b.unmatched = info.Size()
	}
	return err
}

// put appends text to the file, or compares it with the existing contents.
func (b *badFile) put(text []byte) error {
	if existing := make([]byte, min(b.unmatched, int64(len(text)))); len(existing) > 0 {
		if _, err := io.ReadFull(b.file, existing); err != nil {
			return fmt.Errorf("read %s: %w", b.path, err)
		}
		if !bytes.Equal(existing, text[:len(existing)]) {
			return fmt.Errorf("%s %w, with other contents than the bad entries of this import: move it away, or name "+
				"another with --bad", b.path, ErrExists)
		}
		b.unmatched, text = b.unmatched-int64(len(existing)), text[len(existing):]
	}
	_, err := b.file.Write(text)
	return err
}

// close syncs the file.
func (b *badFile) close() error {
	if b.file == nil {
		return nil
	}
	err := b.file.Sync()
	if closed := b.file.Close(); err == nil {
		err = closed
	}
	return err
}
