package spool

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// A segment is a file: a header, then frames, then zeros up to its size.
//
//	header: "POSTERN SPOOL 1\n", 16 bytes of salt, 16 bytes of the SHA-256 of both
//	frame:  magic, length, time, checksum, record, zeros up to a multiple of 16
//	  magic: the last 4 bytes of the header
//	  length: 4 bytes, little endian
//	  time: 8 bytes, Unix microseconds
//	  checksum: 16 bytes
//
// The checksum of a frame covers the salt, the frame's offset, length, time and bytes. Bodies come
// from unauthenticated clients. Without the salt, a body could contain a forged frame, which would
// be read as a delivery once the real frame around it is damaged.
const (
	headMagic  = "POSTERN SPOOL 1\n"
	saltSize   = 16
	sumSize    = 16
	headSize   = len(headMagic) + saltSize + sumSize
	magicSize  = 4
	frameHead  = 32
	frameAlign = 16
)

// MaxRecord is the maximum size of a record in bytes.
const MaxRecord = 1 << 30

var errNotSegment = errors.New("the file has no segment header")

// newHead returns the header of a new segment.
func newHead() []byte {
	head := append(make([]byte, 0, headSize), headMagic...)
	head = append(head, make([]byte, saltSize)...)
	_, _ = rand.Read(head[len(headMagic):]) // never fails
	sum := sha256.Sum256(head)
	return append(head, sum[:sumSize]...)
}

// frameCodec encodes and decodes the frames of a segment, which share magic bytes and the salt of
// the checksums.
type frameCodec struct{ magic, salt []byte }

// parseHead checks a header.
func parseHead(head []byte) (frameCodec, error) {
	if len(head) != headSize || !bytes.HasPrefix(head, []byte(headMagic)) {
		return frameCodec{}, errNotSegment
	}
	sum := sha256.Sum256(head[:headSize-sumSize])
	if !bytes.Equal(sum[:sumSize], head[headSize-sumSize:]) {
		return frameCodec{}, errNotSegment
	}
	return frameCodec{magic: head[headSize-magicSize:], salt: head[len(headMagic) : headSize-sumSize]}, nil
}

// frameSize returns the size of a record's frame in bytes.
func frameSize(record int) int64 {
	return int64(frameHead+record+frameAlign-1) / frameAlign * frameAlign
}

// appendFrame appends the frame of a record that will be written at the given offset of the
// segment.
func (s frameCodec) appendFrame(buf []byte, offset int64, at time.Time, record []byte) []byte {
	var head [frameHead]byte
	copy(head[:], s.magic)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(record))) //nolint:gosec // at most MaxRecord
	binary.LittleEndian.PutUint64(head[8:], uint64(at.UnixMicro()))
	copy(head[16:], s.checksum(offset, head[:16], record))
	buf = append(append(buf, head[:]...), record...)
	return append(buf, make([]byte, int(frameSize(len(record)))-frameHead-len(record))...)
}

func (s frameCodec) checksum(offset int64, head, record []byte) []byte {
	h := sha256.New()
	h.Write(s.salt)
	h.Write(binary.LittleEndian.AppendUint64(make([]byte, 0, 8), uint64(offset)))
	h.Write(head)
	h.Write(record)
	return h.Sum(nil)[:sumSize]
}

// errNoFrame means that there is no complete frame at an offset.
var errNoFrame = errors.New("no complete frame")

// readHead reads the header of a frame, with the length of its record and the time of the append.
// Errors: errNoFrame, or those of the file.
func (s frameCodec) readHead(r io.ReaderAt, size, offset int64) (head [frameHead]byte, record int, at time.Time,
	err error) {
	if offset+frameHead > size {
		return head, 0, at, errNoFrame
	}
	if _, err = r.ReadAt(head[:], offset); err != nil {
		return head, 0, at, fmt.Errorf("read the spool: %w", err)
	}
	length := int64(binary.LittleEndian.Uint32(head[4:]))
	if !bytes.HasPrefix(head[:], s.magic) || offset+frameSize(int(length)) > size {
		return head, 0, at, errNoFrame
	}
	micros := int64(binary.LittleEndian.Uint64(head[8:])) //nolint:gosec // as it was written
	return head, int(length), time.UnixMicro(micros).UTC(), nil
}

// read reads and checks the frame at an offset. Errors: errNoFrame, or those of the file.
func (s frameCodec) read(r io.ReaderAt, size, offset int64) (rec Record, err error) {
	head, length, at, err := s.readHead(r, size, offset)
	if err != nil {
		return rec, err
	}
	rec = Record{At: at, Bytes: make([]byte, length), nextOffset: offset + frameSize(length)}
	if _, err := r.ReadAt(rec.Bytes, offset+frameHead); err != nil {
		return rec, fmt.Errorf("read the spool: %w", err)
	}
	if !bytes.Equal(s.checksum(offset, head[:16], rec.Bytes), head[16:]) {
		return Record{}, errNoFrame
	}
	return rec, nil
}
