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

// A segment is a file: a head, then frames, then zeros up to its size.
//
//	head:  "POSTERN SPOOL 1\n", 16 bytes of salt, 16 bytes of the SHA-256 of both
//	frame: the last 4 bytes of the head, length (4 bytes, little endian), time (8 bytes, Unix microseconds), sum (16 bytes), so many bytes, zeros up to a multiple of 16
//
// A frame's sum is of the salt, its place, length, time and bytes. Bodies come from strangers: without the salt, one could carry a frame of its own that would be read as a delivery once
// the frame around it is damaged, or a million beginnings of one.
const (
	headMagic = "POSTERN SPOOL 1\n"
	saltSize  = 16
	sumSize   = 16
	headSize  = len(headMagic) + saltSize + sumSize
	magicSize = 4
	frameHead = 32
	align     = 16
)

// MaxRecord is the largest record in bytes.
const MaxRecord = 1 << 30

var errHead = errors.New("the file does not begin as a segment does")

// newHead is the head of a new segment.
func newHead() []byte {
	head := append(make([]byte, 0, headSize), headMagic...)
	head = append(head, make([]byte, saltSize)...)
	_, _ = rand.Read(head[len(headMagic):]) // never fails
	sum := sha256.Sum256(head)
	return append(head, sum[:sumSize]...)
}

// seal is what a segment's frames begin with and are summed with.
type seal struct{ magic, salt []byte }

// sealOf checks a head.
func sealOf(head []byte) (seal, error) {
	if len(head) != headSize || !bytes.HasPrefix(head, []byte(headMagic)) {
		return seal{}, errHead
	}
	sum := sha256.Sum256(head[:headSize-sumSize])
	if !bytes.Equal(sum[:sumSize], head[headSize-sumSize:]) {
		return seal{}, errHead
	}
	return seal{magic: head[headSize-magicSize:], salt: head[len(headMagic) : headSize-sumSize]}, nil
}

// frameSize is what a record takes in a segment.
func frameSize(record int) int64 {
	return int64(frameHead+record+align-1) / align * align
}

// appendFrame appends the frame of a record that will stand at the given place of the segment.
func (s seal) appendFrame(buf []byte, place int64, at time.Time, record []byte) []byte {
	var head [frameHead]byte
	copy(head[:], s.magic)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(record))) //nolint:gosec // at most MaxRecord
	binary.LittleEndian.PutUint64(head[8:], uint64(at.UnixMicro()))
	copy(head[16:], s.sum(place, head[:16], record))
	buf = append(append(buf, head[:]...), record...)
	return append(buf, make([]byte, int(frameSize(len(record)))-frameHead-len(record))...)
}

func (s seal) sum(place int64, start, record []byte) []byte {
	h := sha256.New()
	h.Write(s.salt)
	h.Write(binary.LittleEndian.AppendUint64(make([]byte, 0, 8), uint64(place)))
	h.Write(start)
	h.Write(record)
	return h.Sum(nil)[:sumSize]
}

// errFrame: what stands there is no whole frame.
var errFrame = errors.New("no whole frame")

// peek reads a frame's head: how long its record is and when it was kept. Errors: errFrame, or the file's.
func (s seal) peek(r io.ReaderAt, size, place int64) (head [frameHead]byte, record int, at time.Time, err error) {
	if place+frameHead > size {
		return head, 0, at, errFrame
	}
	if _, err = r.ReadAt(head[:], place); err != nil {
		return head, 0, at, fmt.Errorf("read the spool: %w", err)
	}
	length := int64(binary.LittleEndian.Uint32(head[4:]))
	if !bytes.HasPrefix(head[:], s.magic) || place+frameSize(int(length)) > size {
		return head, 0, at, errFrame
	}
	return head, int(length), time.UnixMicro(int64(binary.LittleEndian.Uint64(head[8:]))).UTC(), nil //nolint:gosec // as it was written
}

// read reads and checks the frame at a place. Errors: errFrame, or the file's.
func (s seal) read(r io.ReaderAt, size, place int64) (rec Record, err error) {
	head, length, at, err := s.peek(r, size, place)
	if err != nil {
		return rec, err
	}
	rec = Record{At: at, Bytes: make([]byte, length), next: place + frameSize(length)}
	if _, err := r.ReadAt(rec.Bytes, place+frameHead); err != nil {
		return rec, fmt.Errorf("read the spool: %w", err)
	}
	if !bytes.Equal(s.sum(place, head[:16], rec.Bytes), head[16:]) {
		return Record{}, errFrame
	}
	return rec, nil
}
