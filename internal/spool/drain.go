package spool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
)

// Drain hands what is kept to take, the oldest first, at most so many records or bytes at once (but one), until nothing is left. What take has returned nil for is not handed out again
// by this process, and goes from the disk with all of its file; a process that is ended before that hands it out again when it is back. After an error of take that batch is the next one again.
// Records are appended meanwhile as ever. What cannot be read is set apart (Stats.Damaged) and kept for a person. Errors: take's, ctx's, and the disk's.
func (s *Spool) Drain(ctx context.Context, most int, bytes int64, take func([]Record) error) error {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.forgetRemoved()
	for ctx.Err() == nil {
		g, end := s.oldest()
		if g == nil {
			return nil
		}
		batch, before, err := g.batch(end, most, bytes)
		if len(batch) > 0 {
			if err := take(batch); err != nil {
				*g.read = before
				return err
			}
			s.taken(g, batch)
			continue
		}
		if err := s.finish(ctx, g, end, err); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// oldest is the segment to read from, and the place up to which it is durable; nil where nothing is kept.
func (s *Spool) oldest() (*segment, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sealed) > 0 {
		return s.sealed[0], s.sealed[0].end
	}
	if s.active != nil && s.active.end > int64(headSize) {
		return s.active, s.active.end
	}
	return nil, 0
}

// batch reads on; before is how far it was read then. Errors: io.EOF where it is read to the end, errHead, and the file's: an empty batch comes with one.
func (g *segment) batch(end int64, most int, bytes int64) (batch []Record, before reader, err error) {
	if g.read == nil {
		if g.read, err = newReader(g.file); err != nil {
			return nil, before, err
		}
	}
	before = *g.read
	for size := int64(0); len(batch) < most && (len(batch) == 0 || size < bytes); {
		rec, err := g.read.next(end)
		if err != nil {
			return batch, before, err
		}
		batch = append(batch, rec)
		size += int64(len(rec.Bytes))
	}
	return batch, before, nil
}

// taken takes a batch out of the count.
func (s *Spool) taken(g *segment, batch []Record) {
	var t Stats
	for _, rec := range batch {
		t.add(Stats{Records: 1, Bytes: frameSize(len(rec.Bytes)), Oldest: rec.At})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Records, t.Bytes = min(t.Records, g.stats.Records), min(t.Bytes, g.stats.Bytes) // what is behind damaged heads was not counted
	g.stats.Records -= t.Records
	g.stats.Bytes -= t.Bytes
	s.kept.remove(t)
	if s.kept.Records > 0 {
		s.kept.Oldest = batch[len(batch)-1].At // what is left is younger
	}
}

// remove takes out of the count; one that is empty has no oldest.
func (t *Stats) remove(o Stats) {
	t.Records -= o.Records
	t.Bytes -= o.Bytes
	if t.Records <= 0 {
		*t = Stats{}
	}
}

// finish ends a segment that was read up to a place, unless more has come in since: its file goes, or is set apart where not all of it could be read.
func (s *Spool) finish(ctx context.Context, g *segment, end int64, why error) error {
	if over, err := s.retire(ctx, g, end); !over {
		return err
	}
	bad := g.read == nil || g.read.lost > 0 || g.read.torn || !errors.Is(why, io.EOF)
	var err error
	if bad {
		name := g.name
		if err = s.disk.Rename(g.name, g.name+damaged); err == nil {
			name += damaged
		}
		s.tell(g, name, why)
	} else {
		err = s.disk.Remove(g.name)
	}
	if err = errors.Join(err, g.file.Close(), s.disk.Sync()); err != nil {
		return fmt.Errorf("drain the spool: %w", err)
	}
	return nil
}

// retire takes a segment out of the list, and what of it could not be read out of the count. False: more has come in, or a write to it was under way, and has ended by now.
func (s *Spool) retire(ctx context.Context, g *segment, end int64) (bool, error) {
	if over, busy := s.retired(g, end); !busy {
		return over, nil
	}
	select {
	case <-s.wrote:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// retired is retire where nothing is waited for; busy: a write to the segment may be under way.
func (s *Spool) retired(g *segment, end int64) (over, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case g.end != end:
		return false, false
	case s.active != g:
		s.sealed = s.sealed[1:] // it was the active one, or the oldest: either way it is the oldest now
	case !s.syncing.IsZero():
		return false, true
	default:
		s.active = nil
	}
	s.kept.remove(g.stats)
	return true, false
}

// forgetRemoved drops from Stats the files that were set apart and that an operator has removed.
// Without such files it does not touch the disk. A folder that cannot be read keeps the count.
func (s *Spool) forgetRemoved() {
	s.mu.Lock()
	known := len(s.apart)
	s.mu.Unlock()
	if known == 0 {
		return
	}
	names, err := s.disk.Names()
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.apart, func(name string, _ bool) bool { return !slices.Contains(names, name) })
}

// tell says that a segment is set apart, and what that means.
func (s *Spool) tell(g *segment, name string, why error) {
	s.mu.Lock()
	s.apart[name] = true
	s.mu.Unlock()
	switch {
	case g.read != nil && g.read.lost == 0 && errors.Is(why, io.EOF):
		s.o.Logger.Warn("a file of the spool ends in a record that is not whole: a write that was cut off, which was not acknowledged, or a damaged delivery, which was; it is kept", "file", name, "at", g.read.place)
	case g.read != nil && errors.Is(why, io.EOF):
		s.o.Logger.Error("a file of the spool is damaged: what could be read is taken, and acknowledged deliveries may be missing; it is kept", "file", name, "places", g.read.lost)
	default:
		s.o.Logger.Error("a file of the spool cannot be read: acknowledged deliveries may be missing; it is kept", "file", name, "records", g.stats.Records, "error", why)
	}
}

// refused is of a record that its reader could make nothing of.
const refused = ".refused"

// SetApart keeps a record in a file of its own, out of the way of the others, and returns its name. Whoever drains calls it for what can never be taken.
func (s *Spool) SetApart(rec Record) (string, error) {
	sum := sha256.Sum256(rec.Bytes)
	name := fmt.Sprintf("%d-%x%s", rec.At.UnixMicro(), sum[:8], refused)
	f, err := s.disk.Create(name)
	if err == nil {
		s.mu.Lock()
		s.apart[name] = true
		s.mu.Unlock()
	}
	if errors.Is(err, fs.ErrExist) {
		return name, nil // by a process that ended before its file went
	}
	if err == nil {
		_, err = f.WriteAt(rec.Bytes, 0)
		err = errors.Join(err, f.Sync(), f.Close(), s.disk.Sync())
	}
	if err != nil {
		return "", fmt.Errorf("set a record apart: %w", err)
	}
	return name, nil
}
