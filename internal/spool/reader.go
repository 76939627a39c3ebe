package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// Record is a stored delivery.
type Record struct {
	Bytes []byte
	// At is the time of the append.
	At time.Time
	// nextOffset is the offset after the record's frame.
	nextOffset int64
}

// readable is the part of a file that a reader needs.
type readable interface {
	io.ReaderAt
	// Size returns the size in bytes.
	Size() (int64, error)
}

// reader reads a segment frame by frame, and continues after damaged parts.
type reader struct {
	file   readable
	codec  frameCodec
	offset int64
	// lostPlaces is the number of places where a frame cannot be read, although complete frames
	// follow. Acknowledged records may be lost there.
	lostPlaces int
	// tornTail is true if the segment ends in data that is neither a frame nor zeros: the process
	// ended during a write, or the last frame is damaged.
	tornTail bool
}

// newReader reads the segment's header. Errors: errNotSegment, or those of the file.
func newReader(f readable) (*reader, error) {
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	head := make([]byte, min(int64(headSize), size))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	codec, err := parseHead(head)
	if err != nil {
		return nil, err
	}
	return &reader{file: f, codec: codec, offset: int64(headSize)}, nil
}

// next returns the next complete record before the offset end. io.EOF means that there is none.
func (r *reader) next(end int64) (Record, error) {
	rec, err := r.codec.read(r.file, end, r.offset)
	if err == nil {
		r.offset = rec.nextOffset
	}
	if !errors.Is(err, errNoFrame) {
		return rec, err
	}
	at, err := r.findFrame(end)
	if err != nil {
		return Record{}, err
	}
	// If another process writes to the file, the frame may have become complete before the one
	// after it was found.
	if rec, err := r.codec.read(r.file, end, r.offset); err == nil {
		r.offset = rec.nextOffset
		return rec, nil
	}
	r.lostPlaces++
	r.offset = at
	return r.next(end)
}

// chunkSize is how much is read at once to search for frames.
const chunkSize = 1 << 20

// findFrame searches for a complete frame after an offset without one. io.EOF means that there is
// none; tornTail tells whether there is other data.
func (r *reader) findFrame(end int64) (int64, error) {
	buf := make([]byte, chunkSize)
	for from := r.offset; from < end; from += chunkSize {
		part := buf[:min(chunkSize, end-from)]
		if _, err := r.file.ReadAt(part, from); err != nil {
			return 0, fmt.Errorf("read the spool: %w", err)
		}
		r.tornTail = r.tornTail || !isZero(part)
		for i := 0; i+magicSize <= len(part); i += frameAlign {
			if !bytes.HasPrefix(part[i:], r.codec.magic) || from+int64(i) == r.offset {
				continue
			}
			_, err := r.codec.read(r.file, end, from+int64(i))
			if err == nil {
				r.tornTail = false
				return from + int64(i), nil
			}
			if !errors.Is(err, errNoFrame) {
				return 0, err
			}
		}
	}
	return 0, io.EOF
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
