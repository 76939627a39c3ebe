package spool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Run writes appended records until ctx ends and none is pending. It creates a file in advance, so
// that the first record need not wait for that.
func (s *Spool) Run(ctx context.Context) error {
	retry := time.NewTicker(retryInterval)
	defer retry.Stop()
	for {
		s.prepareSpare()
		for s.writeBatch() {
			s.prepareSpare()
		}
		select {
		case <-s.ready:
		case <-retry.C:
		case <-ctx.Done():
			for s.writeBatch() {
			}
			return s.close()
		}
	}
}

// prepareSpare creates a file in advance if there is none. After a failure it tries again only at
// intervals, so that writes do not wait for it.
func (s *Spool) prepareSpare() {
	if s.spare != nil || time.Since(s.lastAttempt) < retryInterval/2 {
		return
	}
	s.lastAttempt = time.Now()
	s.setCreateStarted(s.lastAttempt)
	g, err := s.create(s.o.SegmentBytes)
	s.setCreateStarted(time.Time{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.createErr == nil {
		var free int64
		if s.active != nil {
			free = s.active.free()
		}
		s.o.Logger.Error("the spool cannot create another file: if PostgreSQL is unavailable, deliveries are "+
			"rejected once the current file is full", "free_bytes", free, "error", err)
	}
	if err == nil {
		if s.createErr != nil {
			s.o.Logger.Info("the spool can create files again")
		}
		s.lastAttempt = time.Time{}
	}
	s.spare, s.createErr = g, err
}

// setCreateStarted records the start of a file's creation, so that a stalled disk is noticed even
// without deliveries.
func (s *Spool) setCreateStarted(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createStarted = since
}

// writeBatch writes pending records, as many as one sync should write, and sends the results. It
// returns false if none is pending.
func (s *Spool) writeBatch() bool {
	batch := s.takeBatch()
	if len(batch) == 0 {
		return false
	}
	g, size, err := s.write(batch)
	s.finishWrite(g, batch, size, err)
	for _, e := range batch {
		e.done <- err
	}
	return true
}

// finishWrite counts the records that a write has made durable. After a failed write it seals the
// segment: its confirmed records are read, and nothing more is written to it.
func (s *Spool) finishWrite(g *segment, batch []*pendingRecord, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeStarted = time.Time{}
	s.pendingBytes -= size
	t := Stats{Records: int64(len(batch)), Bytes: size, Oldest: batch[0].at}
	switch {
	case err == nil:
		g.end += size
		g.stats.add(t)
	case g != nil && s.active == g:
		s.active = nil
		s.sealed = append(s.sealed, g)
		fallthrough
	default:
		s.totals.remove(t)
	}
	select {
	case s.writeEnded <- struct{}{}:
	default: // a token is there already
	}
}

// takeBatch takes pending records, at most maxBatchBytes but at least one. If there is no spare
// file, it takes only as many as fit into the active one.
func (s *Spool) takeBatch() []*pendingRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	maxBytes := int64(maxBatchBytes)
	if s.spare == nil && s.active != nil {
		maxBytes = min(maxBytes, s.active.free())
	}
	n, bytes := 0, int64(0)
	for n < len(s.pending) && (n == 0 || bytes+frameSize(len(s.pending[n].bytes)) <= maxBytes) {
		bytes += frameSize(len(s.pending[n].bytes))
		n++
	}
	batch := s.pending[:n:n]
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.pending = nil
	}
	if n > 0 {
		s.writeStarted = time.Now()
	}
	return batch
}

// write makes a batch durable in one file. After a failed write the next batch goes to another
// file.
func (s *Spool) write(batch []*pendingRecord) (g *segment, size int64, err error) {
	for _, e := range batch {
		size += frameSize(len(e.bytes))
	}
	if g, err = s.segmentFor(size); err == nil {
		err = g.write(batch, size)
	}
	if err != nil {
		s.o.Logger.Error("the spool could not be written; none of these deliveries is acknowledged", "deliveries",
			len(batch), "error", err)
		return g, size, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return g, size, nil
}

// segmentFor returns a segment with enough free space: the active one, the spare one, or a new one
// for a larger size. If none can be created, the active segment stays active, and smaller batches
// may still fit into it.
func (s *Spool) segmentFor(size int64) (*segment, error) {
	if g := s.activeSegment(); g != nil && g.free() >= size {
		return g, nil
	}
	g := s.spare
	if g == nil || g.free() < size {
		created, err := s.create(max(s.o.SegmentBytes, int64(headSize)+size))
		if err != nil {
			return nil, err
		}
		g = created
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g == s.spare {
		s.spare = nil
	}
	if s.active != nil { // it is full
		s.sealed = append(s.sealed, s.active)
	}
	s.active = g
	return g, nil
}

// activeSegment returns the active segment; nil if there is none.
func (s *Spool) activeSegment() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// close ends writing. The stored records stay; the spare file is deleted.
func (s *Spool) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	if s.spare != nil {
		errs = append(errs, s.spare.file.Close(), s.disk.Remove(s.spare.name))
	}
	for _, g := range s.sealed {
		errs = append(errs, g.file.Close())
	}
	if s.active != nil {
		errs = append(errs, s.active.file.Close())
	}
	for _, e := range s.pending {
		e.done <- errClosed
	}
	s.active, s.spare, s.sealed, s.pending, s.createErr = nil, nil, nil, nil, errClosed
	return errors.Join(append(errs, s.disk.Close())...)
}

var errClosed = errors.New("the spool is closed")
