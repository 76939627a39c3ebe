package spool

import (
	"errors"
	"fmt"
)

// segment is one file. This process either created it and writes to it, or only reads it.
type segment struct {
	name  string
	file  File
	codec frameCodec
	size  int64
	// end is the offset after the last synced frame. For a file of an earlier process it is the
	// file's size.
	end int64
	// read is the reader that drains the segment.
	read *reader
	// stats counts the records that are not drained yet.
	stats Stats
}

// create creates a file of the given size. File and name are durable before it is used, so that a
// later sync has only data to write.
func (s *Spool) create(size int64) (_ *segment, err error) {
	s.number++
	name := segmentName(s.number)
	f, err := s.disk.Create(name + temporarySuffix)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), s.disk.Remove(name+temporarySuffix))
		}
	}()
	head := newHead()
	if err := writeHead(f, head, size); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := s.disk.Rename(name+temporarySuffix, name); err != nil {
		return nil, err
	}
	if err := s.disk.Sync(); err != nil {
		return nil, errors.Join(err, s.disk.Rename(name, name+temporarySuffix))
	}
	return &segment{name: name, file: f, codec: must(parseHead(head)), size: size, end: int64(headSize)}, nil
}

func must(s frameCodec, _ error) frameCodec { return s }

// writeHead writes the header and zeros up to the size.
func writeHead(f File, head []byte, size int64) error {
	zeros := make([]byte, chunkSize)
	for at := int64(0); at < size; at += chunkSize {
		part := zeros[:min(chunkSize, size-at)]
		if at == 0 {
			part = append([]byte(nil), part...)
			copy(part, head)
		}
		if _, err := f.WriteAt(part, at); err != nil {
			return err
		}
	}
	return nil
}

func (g *segment) free() int64 { return g.size - g.end }

// write writes a batch after the last one and syncs it. After an error the caller must not write to
// the segment again: a second sync may return nil although the data was not written.
func (g *segment) write(batch []*pendingRecord, size int64) error {
	buf := make([]byte, 0, size)
	for _, e := range batch {
		buf = g.codec.appendFrame(buf, g.end+int64(len(buf)), e.at, e.bytes)
	}
	if _, err := g.file.WriteAt(buf, g.end); err != nil {
		return fmt.Errorf("write %s: %w", g.name, err)
	}
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", g.name, err)
	}
	return nil
}

// reopen opens a file of an earlier process. It counts the records by the headers of the frames;
// only the reader verifies checksums.
func (s *Spool) reopen(name string) (*segment, error) {
	f, err := s.disk.Open(name)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g := &segment{name: name, file: f, size: size, end: size}
	r, err := newReader(f)
	if errors.Is(err, errNotSegment) {
		return g, nil // Drain renames it
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g.codec = r.codec
	for offset := r.offset; ; {
		_, record, at, err := g.codec.readHead(f, size, offset)
		if errors.Is(err, errNoFrame) {
			return g, nil
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		g.stats.add(Stats{Records: 1, Bytes: frameSize(record), Oldest: at})
		offset += frameSize(record)
	}
}
