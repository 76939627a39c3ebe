package spool

import (
	"errors"
	"fmt"
)

// segment is one file: written from its head on, or only read.
type segment struct {
	name string
	file File
	seal seal
	size int64
	// end is behind the last frame that was synced; of a file that was there at the start, its size.
	end int64
	// read is how far it was drained.
	read *reader
	// stats are of what is in it and was not drained yet.
	stats Stats
}

// create makes a file of so many bytes, durable with its name before anything in it counts, so that a sync later has only bytes to write.
func (s *Spool) create(size int64) (_ *segment, err error) {
	s.number++
	name := segmentName(s.number)
	f, err := s.disk.Create(name + making)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), s.disk.Remove(name+making))
		}
	}()
	head := newHead()
	if err := fill(f, head, size); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := s.disk.Rename(name+making, name); err != nil {
		return nil, err
	}
	if err := s.disk.Sync(); err != nil {
		return nil, errors.Join(err, s.disk.Rename(name, name+making))
	}
	return &segment{name: name, file: f, seal: must(sealOf(head)), size: size, end: int64(headSize)}, nil
}

func must(s seal, _ error) seal { return s }

// fill writes a head and zeros up to the size.
func fill(f File, head []byte, size int64) error {
	zeros := make([]byte, chunk)
	for at := int64(0); at < size; at += chunk {
		part := zeros[:min(chunk, size-at)]
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

func (g *segment) room() int64 { return g.size - g.end }

// write writes a batch behind the last, in one piece, and syncs it. After an error the segment must not be written to again: a sync that failed once may succeed the next time without having written anything.
func (g *segment) write(batch []*entry, size int64) error {
	buf := make([]byte, 0, size)
	for _, e := range batch {
		buf = g.seal.appendFrame(buf, g.end+int64(len(buf)), e.at, e.bytes)
	}
	if _, err := g.file.WriteAt(buf, g.end); err != nil {
		return fmt.Errorf("write %s: %w", g.name, err)
	}
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", g.name, err)
	}
	return nil
}

// reopen opens a file that an earlier process left, and counts what is in it by the frames' heads alone; whoever reads it checks them.
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
	if errors.Is(err, errHead) {
		return g, nil // drain sets it apart
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g.seal = r.seal
	for place := r.place; ; {
		_, record, at, err := g.seal.peek(f, size, place)
		if errors.Is(err, errFrame) {
			return g, nil
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		g.stats.add(Stats{Records: 1, Bytes: frameSize(record), Oldest: at})
		place += frameSize(record)
	}
}
