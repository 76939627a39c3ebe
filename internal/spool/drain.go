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

// Drain passes the stored records to handle, the oldest first, until the spool is empty. A batch
// has at most maxRecords records and maxBytes bytes, but always one record. Append may run
// concurrently.
//
// After handle returned nil, this process does not pass the batch again. The records are deleted
// with their whole file. If the process ends before that, the next process passes them again. If
// handle returns an error, the same batch comes first in the next call. Files that cannot be read
// completely are kept for an operator (Stats.Damaged). Errors: those of handle, of ctx and of the
// disk.
func (s *Spool) Drain(ctx context.Context, maxRecords int, maxBytes int64, handle func([]Record) error) error {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.countRemovedFiles()
	for ctx.Err() == nil {
		g, end := s.oldest()
		if g == nil {
			return nil
		}
		batch, position, err := g.readBatch(end, maxRecords, maxBytes)
		if len(batch) > 0 {
			if err := handle(batch); err != nil {
				*g.read = position
				return err
			}
			s.countDrained(g, batch)
			continue
		}
		if err := s.finishSegment(ctx, g, end, err); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// oldest returns the segment to read from, and the offset up to which it is durable; nil if the
// spool is empty.
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

// readBatch reads the next batch; position is where the reader was before. Errors: io.EOF at the
// end, errNotSegment, and those of the file. An empty batch always comes with an error.
func (g *segment) readBatch(end int64, maxRecords int, maxBytes int64) (batch []Record, position reader, err error) {
	if g.read == nil {
		if g.read, err = newReader(g.file); err != nil {
			return nil, position, err
		}
	}
	position = *g.read
	for size := int64(0); len(batch) < maxRecords && (len(batch) == 0 || size < maxBytes); {
		rec, err := g.read.next(end)
		if err != nil {
			return batch, position, err
		}
		batch = append(batch, rec)
		size += int64(len(rec.Bytes))
	}
	return batch, position, nil
}

// countDrained subtracts a batch from the totals.
func (s *Spool) countDrained(g *segment, batch []Record) {
	var t Stats
	for _, rec := range batch {
		t.add(Stats{Records: 1, Bytes: frameSize(len(rec.Bytes)), Oldest: rec.At})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// records behind a damaged header were not counted
	t.Records, t.Bytes = min(t.Records, g.stats.Records), min(t.Bytes, g.stats.Bytes)
	g.stats.Records -= t.Records
	g.stats.Bytes -= t.Bytes
	s.totals.remove(t)
	if s.totals.Records > 0 {
		s.totals.Oldest = batch[len(batch)-1].At // the remaining records are newer
	}
}

// remove subtracts from the counts. Empty counts have no oldest record.
func (t *Stats) remove(o Stats) {
	t.Records -= o.Records
	t.Bytes -= o.Bytes
	if t.Records <= 0 {
		*t = Stats{}
	}
}

// finishSegment ends a segment that was read up to end, unless records were added since. It deletes
// the file, or keeps it under another name if it could not be read completely.
func (s *Spool) finishSegment(ctx context.Context, g *segment, end int64, readErr error) error {
	if dropped, err := s.dropSegment(ctx, g, end); !dropped {
		return err
	}
	isDamaged := g.read == nil || g.read.lostPlaces > 0 || g.read.tornTail || !errors.Is(readErr, io.EOF)
	var err error
	if isDamaged {
		name := g.name
		if err = s.disk.Rename(g.name, g.name+damagedSuffix); err == nil {
			name += damagedSuffix
		}
		s.reportDamaged(g, name, readErr)
	} else {
		err = s.disk.Remove(g.name)
	}
	if err = errors.Join(err, g.file.Close(), s.disk.Sync()); err != nil {
		return fmt.Errorf("drain the spool: %w", err)
	}
	return nil
}

// dropSegment removes a segment from the list, and its unread records from the totals. It returns
// false if records were added, or if a write was in progress; that write has ended then.
func (s *Spool) dropSegment(ctx context.Context, g *segment, end int64) (bool, error) {
	if dropped, busy := s.tryDropSegment(g, end); !busy {
		return dropped, nil
	}
	select {
	case <-s.writeEnded:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// tryDropSegment is dropSegment without waiting. busy is true if a write to the segment may be in
// progress.
func (s *Spool) tryDropSegment(g *segment, end int64) (dropped, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case g.end != end:
		return false, false
	case s.active != g:
		s.sealed = s.sealed[1:] // g was the oldest sealed segment, or it was the active one and no other was sealed
	case !s.writeStarted.IsZero():
		return false, true
	default:
		s.active = nil
	}
	s.totals.remove(g.stats)
	return true, false
}

// countRemovedFiles removes from the statistics the damaged and quarantined files that an operator
// has deleted. If there are none, it does not read the disk. If the folder cannot be read, the
// counts stay.
func (s *Spool) countRemovedFiles() {
	s.mu.Lock()
	counted := len(s.setAside)
	s.mu.Unlock()
	if counted == 0 {
		return
	}
	names, err := s.disk.Names()
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.setAside, func(name string, _ bool) bool { return !slices.Contains(names, name) })
}

// reportDamaged counts a damaged file that is kept, and logs which deliveries may be missing.
func (s *Spool) reportDamaged(g *segment, name string, readErr error) {
	s.mu.Lock()
	s.setAside[name] = true
	s.mu.Unlock()
	switch {
	case g.read != nil && g.read.lostPlaces == 0 && errors.Is(readErr, io.EOF):
		s.o.Logger.Warn("the last record in a file of the spool is incomplete: either an interrupted write, which was "+
			"not acknowledged, or a damaged delivery, which was acknowledged; the file is kept", "file", name, "at",
			g.read.offset)
	case g.read != nil && errors.Is(readErr, io.EOF):
		s.o.Logger.Error("a file of the spool is damaged: the readable deliveries were appended, but acknowledged "+
			"deliveries may be missing; the file is kept", "file", name, "places", g.read.lostPlaces)
	default:
		s.o.Logger.Error("a file of the spool cannot be read: acknowledged deliveries may be missing; the file is kept",
			"file", name, "records", g.stats.Records, "error", readErr)
	}
}

// quarantineSuffix is the suffix of a file with a record that could not be appended.
const quarantineSuffix = ".quarantined"

// Quarantine moves a record to a file of its own and returns the file's name. The caller of Drain
// uses it for records that can never be appended.
func (s *Spool) Quarantine(rec Record) (string, error) {
	sum := sha256.Sum256(rec.Bytes)
	name := fmt.Sprintf("%d-%x%s", rec.At.UnixMicro(), sum[:8], quarantineSuffix)
	f, err := s.disk.Create(name)
	if err == nil {
		s.mu.Lock()
		s.setAside[name] = true
		s.mu.Unlock()
	}
	if errors.Is(err, fs.ErrExist) {
		return name, nil // an earlier process wrote it but ended before the record's segment was deleted
	}
	if err == nil {
		_, err = f.WriteAt(rec.Bytes, 0)
		err = errors.Join(err, f.Sync(), f.Close(), s.disk.Sync())
	}
	if err != nil {
		return "", fmt.Errorf("quarantine a record: %w", err)
	}
	return name, nil
}
