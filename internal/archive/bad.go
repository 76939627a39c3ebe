package archive

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
)

// badFile is where entries that are no events are copied to, unchanged; it is made when there is one. What lies there already is never written over: it may be
// what an earlier run of the same import has set aside, behind which this one goes on, and is an error otherwise.
type badFile struct {
	path string
	// head is what the file begins with.
	head []byte
	dry  bool
	f    *os.File
	// there is how much of what lay there is still to be met, in bytes.
	there int64
}

func (b *badFile) add(raw []byte) error {
	if b.path == "" || b.dry || len(raw) == 0 {
		return nil
	}
	if b.f == nil {
		if err := b.open(); err != nil {
			return err
		}
		if err := b.put(b.head); err != nil {
			return err
		}
	}
	if raw[len(raw)-1] != '\n' { // the last of its file
		raw = append(slices.Clip(raw), '\n')
	}
	return b.put(raw)
}

func (b *badFile) open() (err error) {
	if b.f, err = os.OpenFile(b.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	info, err := b.f.Stat()
	if err == nil && info.Mode().IsRegular() {
		b.there = info.Size()
	}
	return err
}

// put writes text behind all that is there, or finds it there.
func (b *badFile) put(text []byte) error {
	if have := make([]byte, min(b.there, int64(len(text)))); len(have) > 0 {
		if _, err := io.ReadFull(b.f, have); err != nil {
			return fmt.Errorf("read %s: %w", b.path, err)
		}
		if !bytes.Equal(have, text[:len(have)]) {
			return fmt.Errorf("%s %w, with something else than what this import sets aside: move it away, or name another with --bad", b.path, ErrExists)
		}
		b.there, text = b.there-int64(len(have)), text[len(have):]
	}
	_, err := b.f.Write(text)
	return err
}

// close makes what was copied durable.
func (b *badFile) close() error {
	if b.f == nil {
		return nil
	}
	err := b.f.Sync()
	if closed := b.f.Close(); err == nil {
		err = closed
	}
	return err
}
