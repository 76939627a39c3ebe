package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// Record is a delivery that was kept.
type Record struct {
	Bytes []byte
	// At is when it was kept.
	At time.Time
	// next is the place behind its frame.
	next int64
}

// readable is what of a file a reader needs.
type readable interface {
	io.ReaderAt
	// Size is in bytes.
	Size() (int64, error)
}

// reader goes through a segment, frame by frame, and on behind what is damaged.
type reader struct {
	file  readable
	seal  seal
	place int64
	// lost is how many places were found at which a frame should stand and does not, with whole ones behind them: what was acknowledged may be lost there.
	lost int
	// torn: the segment ends in something that is no frame and no zeros: the process ended while it was written, or its last frame is damaged.
	torn bool
}

// newReader reads the head. Errors: errHead, or the file's.
func newReader(f readable) (*reader, error) {
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	head := make([]byte, min(int64(headSize), size))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	seal, err := sealOf(head)
	if err != nil {
		return nil, err
	}
	return &reader{file: f, seal: seal, place: int64(headSize)}, nil
}

// next is the next whole record before the end, a place in the segment. io.EOF: there is none.
func (r *reader) next(end int64) (Record, error) {
	rec, err := r.seal.read(r.file, end, r.place)
	if err == nil {
		r.place = rec.next
	}
	if !errors.Is(err, errFrame) {
		return rec, err
	}
	at, err := r.beyond(end)
	if err != nil {
		return Record{}, err
	}
	// Where a file is read that another process writes to, the frame may have become whole before that behind it was seen.
	if rec, err := r.seal.read(r.file, end, r.place); err == nil {
		r.place = rec.next
		return rec, nil
	}
	r.lost++
	r.place = at
	return r.next(end)
}

// chunk is how much is read at once where frames are searched for.
const chunk = 1 << 20

// beyond looks for a whole frame behind a place at which none stands. io.EOF: there is none, and torn says whether there is anything else.
func (r *reader) beyond(end int64) (int64, error) {
	buf := make([]byte, chunk)
	for from := r.place; from < end; from += chunk {
		part := buf[:min(chunk, end-from)]
		if _, err := r.file.ReadAt(part, from); err != nil {
			return 0, fmt.Errorf("read the spool: %w", err)
		}
		r.torn = r.torn || !zero(part)
		for i := 0; i+magicSize <= len(part); i += align {
			if !bytes.HasPrefix(part[i:], r.seal.magic) || from+int64(i) == r.place {
				continue
			}
			_, err := r.seal.read(r.file, end, from+int64(i))
			if err == nil {
				r.torn = false
				return from + int64(i), nil
			}
			if !errors.Is(err, errFrame) {
				return 0, err
			}
		}
	}
	return 0, io.EOF
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
