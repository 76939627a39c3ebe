package spool

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Run writes what is appended until ctx ends and nothing waits. It makes a file ahead, so that the first record need not wait for one.
func (s *Spool) Run(ctx context.Context) error {
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		s.prepare()
		for s.writeBatch() {
			s.prepare()
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

// prepare makes a file ahead where there is none. While none can be made, that is tried now and then alone: what is written meanwhile does not wait for it.
func (s *Spool) prepare() {
	if s.spare != nil || time.Since(s.tried) < retryEvery/2 {
		return
	}
	s.tried = time.Now()
	s.make(s.tried)
	g, err := s.create(s.o.SegmentBytes)
	s.make(time.Time{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.broken == nil {
		var room int64
		if s.active != nil {
			room = s.active.room()
		}
		s.o.Logger.Error("the spool can make no further file: deliveries are refused while postgresql is away, once the file that is written to is full", "room", room, "error", err)
	}
	if err == nil {
		if s.broken != nil {
			s.o.Logger.Info("the spool can make files again")
		}
		s.tried = time.Time{}
	}
	s.spare, s.broken = g, err
}

// make notes since when a file is made ahead, so that a disk that hangs is noticed also while it carries no delivery.
func (s *Spool) make(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making = since
}

// writeBatch writes what waits, as much as one sync shall carry, and answers; false where nothing waits.
func (s *Spool) writeBatch() bool {
	batch := s.take()
	if len(batch) == 0 {
		return false
	}
	g, size, err := s.write(batch)
	s.written(g, batch, size, err)
	for _, e := range batch {
		e.done <- err
	}
	return true
}

// written counts what a write has made durable, or ends the segment of one that failed: what was confirmed in it is read, nothing more comes in.
func (s *Spool) written(g *segment, batch []*entry, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.syncing = time.Time{}
	s.unwritten -= size
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
		s.kept.remove(t)
	}
	select {
	case s.wrote <- struct{}{}:
	default: // nobody waits, or is told already
	}
}

// take is what waits, at most batchBytes but at least one; where no other file is there, no more than the active one has room for.
func (s *Spool) take() []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := int64(batchBytes)
	if s.spare == nil && s.active != nil {
		most = min(most, s.active.room())
	}
	n, bytes := 0, int64(0)
	for n < len(s.waiting) && (n == 0 || bytes+frameSize(len(s.waiting[n].bytes)) <= most) {
		bytes += frameSize(len(s.waiting[n].bytes))
		n++
	}
	batch := s.waiting[:n:n]
	if s.waiting = s.waiting[n:]; len(s.waiting) == 0 {
		s.waiting = nil
	}
	if n > 0 {
		s.syncing = time.Now()
	}
	return batch
}

// write makes a batch durable in one file. What failed half-way is never written behind: the next batch begins a new file.
func (s *Spool) write(batch []*entry) (g *segment, size int64, err error) {
	for _, e := range batch {
		size += frameSize(len(e.bytes))
	}
	if g, err = s.room(size); err == nil {
		err = g.write(batch, size)
	}
	if err != nil {
		s.o.Logger.Error("the spool could not be written; nothing of this is acknowledged", "deliveries", len(batch), "error", err)
		return g, size, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return g, size, nil
}

// room is a segment with so much room: the active one, the one made ahead, or, for more than that has, one of its own. Where there is none and none can be made, the active one stays for what it has room for.
func (s *Spool) room(size int64) (*segment, error) {
	if g := s.current(); g != nil && g.room() >= size {
		return g, nil
	}
	g := s.spare
	if g == nil || g.room() < size {
		own, err := s.create(max(s.o.SegmentBytes, int64(headSize)+size))
		if err != nil {
			return nil, err
		}
		g = own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g == s.spare {
		s.spare = nil
	}
	if s.active != nil { // it is done with
		s.sealed = append(s.sealed, s.active)
	}
	s.active = g
	return g, nil
}

// current is the active segment; nil: there is none.
func (s *Spool) current() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// close ends the writing. What is kept stays; the file made ahead goes.
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
	for _, e := range s.waiting {
		e.done <- errClosed
	}
	s.active, s.spare, s.sealed, s.waiting, s.broken = nil, nil, nil, nil, errClosed
	return errors.Join(append(errs, s.disk.Close())...)
}

var errClosed = errors.New("the spool is closed")
