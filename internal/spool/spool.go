// Package spool keeps deliveries on a disk of the gateway's own while PostgreSQL cannot take them: what Append has returned nil for is in a file and synced. A delivery is bytes here; who
// appends knows what they mean. Nothing is ever written to twice: a process that starts again begins a new file, and a file goes when all in it was taken.
package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The errors of Append.
var (
	// ErrFull: what waits has reached Options.MaxBytes.
	ErrFull = errors.New("the spool is full")
	// ErrBroken: the disk takes nothing now, or does not answer.
	ErrBroken = errors.New("the spool's disk takes nothing")
)

// Options bound a spool.
type Options struct {
	// MaxBytes bounds what is kept, in bytes of its files' frames; beyond it Append fails with ErrFull.
	MaxBytes int64
	// SegmentBytes is how large a file is made ahead; 0: 16 MiB. A record that is larger gets a file of its own.
	SegmentBytes int64
	// StallAfter is how long a sync, or making a file ahead, may take before new records are refused at once; 0: a second.
	StallAfter time.Duration
	Logger     *slog.Logger
}

const (
	segmentBytes = 16 << 20
	// batchBytes bounds what one sync makes durable.
	batchBytes = 4 << 20
	// retryEvery is how often it is tried again to make a file.
	retryEvery = time.Second
)

// Spool is deliveries on a disk. Run writes; Append and Drain may be called meanwhile.
type Spool struct {
	o    Options
	disk Disk

	// number is of the newest file, spare is a file made ahead, and tried is when one could not be made; all are the writer's.
	number uint64
	spare  *segment
	tried  time.Time

	// waiting are records to be written, and unwritten is how large their frames are with those that are written just now; kept counts them and what is on the disk. ready gets a token when some wait, and wrote one when a write has ended.
	mu           sync.Mutex
	waiting      []*entry
	unwritten    int64
	kept         Stats
	ready, wrote chan struct{}
	// active is written to, sealed are only read, the oldest first.
	active *segment
	sealed []*segment
	// apart are the names of the files that Stats.Damaged and Stats.Refused count.
	apart map[string]bool
	// syncing is since when a write is under way, and making since when a file is made ahead, zero while none is; broken is why no file could be made ahead.
	syncing time.Time
	making  time.Time
	broken  error
	// leaving: nothing more is taken.
	leaving bool

	draining sync.Mutex
}

// entry is a record that waits for its sync.
type entry struct {
	bytes []byte
	at    time.Time
	done  chan error
}

// Stats is what a spool holds.
type Stats struct {
	// Records and Bytes wait to be drained; Bytes are of their frames. Of a segment that is damaged they are what its heads tell.
	Records int64
	Bytes   int64
	// Oldest is when the oldest of them was kept; zero where there are none.
	Oldest time.Time
	// Damaged counts the files that could not be read whole and were not removed yet, also those of earlier processes.
	Damaged int64
	// Refused counts the records that SetApart kept and that were not removed yet, also those of
	// earlier processes.
	Refused int64
}

// Open takes up what an earlier process left on the disk, which is the spool's from now on.
func Open(disk Disk, o Options) (*Spool, error) {
	o.SegmentBytes, o.StallAfter = cmp.Or(o.SegmentBytes, segmentBytes), cmp.Or(o.StallAfter, time.Second)
	s := &Spool{o: o, disk: disk, ready: make(chan struct{}, 1), wrote: make(chan struct{}, 1), apart: map[string]bool{}}
	names, err := disk.Names()
	if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	slices.Sort(names) // numbers have leading zeros
	for _, name := range names {
		if err := s.adopt(name); err != nil {
			return nil, fmt.Errorf("open the spool: %w", err)
		}
	}
	return s, nil
}

const (
	suffix = ".spool"
	// making is of a file that is not durable yet: nothing in it counts.
	making = ".making"
	// damaged is of a segment that could not be read whole; a person looks at it.
	damaged = ".damaged"
)

func segmentName(number uint64) string { return fmt.Sprintf("%020d%s", number, suffix) }

// adopt takes up a file that was there.
func (s *Spool) adopt(name string) error {
	if strings.HasSuffix(name, refused) {
		s.apart[name] = true
		return nil
	}
	base, _, _ := strings.Cut(name, ".")
	number, err := strconv.ParseUint(base, 10, 64)
	if err != nil {
		return nil // not ours
	}
	s.number = max(s.number, number) // also of what was set apart: no name is used twice
	switch {
	case strings.HasSuffix(name, making):
		return s.disk.Remove(name)
	case strings.HasSuffix(name, suffix+damaged):
		s.apart[name] = true
		return nil
	case !strings.HasSuffix(name, suffix):
		return nil
	}
	g, err := s.reopen(name)
	if err != nil {
		return err
	}
	s.sealed = append(s.sealed, g)
	s.kept.add(g.stats)
	return nil
}

func (t *Stats) add(o Stats) {
	if o.Records > 0 && (t.Records == 0 || o.Oldest.Before(t.Oldest)) {
		t.Oldest = o.Oldest
	}
	t.Records += o.Records
	t.Bytes += o.Bytes
}

// Stats is what is kept now.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.kept
	for name := range s.apart {
		if strings.HasSuffix(name, refused) {
			kept.Refused++
		} else {
			kept.Damaged++
		}
	}
	return kept
}

// Ready says why nothing would be taken now; nil if it would.
func (s *Spool) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusal(0)
}

// Seal has nothing more taken: what Stats tells from now on is all that is left behind, also while Run goes on.
func (s *Spool) Seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
}

// refusal is why a record of so many bytes is refused at once. The caller has the lock.
func (s *Spool) refusal(record int) error {
	switch {
	case !s.syncing.IsZero() && time.Since(s.syncing) > s.o.StallAfter:
		return fmt.Errorf("%w: a write has not ended for %s", ErrBroken, time.Since(s.syncing).Round(time.Millisecond))
	case !s.making.IsZero() && time.Since(s.making) > s.o.StallAfter:
		return fmt.Errorf("%w: the making of a file has not ended for %s", ErrBroken, time.Since(s.making).Round(time.Millisecond))
	case s.leaving:
		return fmt.Errorf("%w: %w", ErrBroken, errClosed)
	case s.broken != nil && !s.fits(record):
		return fmt.Errorf("%w: %w", ErrBroken, s.broken)
	case record > MaxRecord || s.kept.Bytes+frameSize(record) > s.o.MaxBytes:
		return fmt.Errorf("%w: %d bytes are kept of %d", ErrFull, s.kept.Bytes, s.o.MaxBytes)
	}
	return nil
}

// fits says whether the active segment has room for a record of so many bytes behind all that waits, whatever else the disk refuses. The caller has the lock.
func (s *Spool) fits(record int) bool {
	return s.active != nil && s.unwritten+frameSize(record) <= s.active.room()
}

// Append keeps a record: nil once it is synced. After any error it may be kept all the same, or not. It waits at most until ctx ends. Errors: ErrFull, ErrBroken, ctx's.
func (s *Spool) Append(ctx context.Context, record []byte) error {
	e := &entry{bytes: record, at: time.Now(), done: make(chan error, 1)}
	s.mu.Lock()
	if err := s.refusal(len(record)); err != nil {
		s.mu.Unlock()
		return err
	}
	s.waiting = append(s.waiting, e)
	s.unwritten += frameSize(len(record))
	s.kept.add(Stats{Records: 1, Bytes: frameSize(len(record)), Oldest: e.at})
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default: // the writer is told already
	}
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		s.leave(e)
		return fmt.Errorf("%w: %w", ErrBroken, context.Cause(ctx))
	}
}

// leave drops a record that nobody waits for any more, unless its write is under way: on a slow disk those who gave up would stand before all that come, and hold memory that nobody counts.
func (s *Spool) leave(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.waiting, e); at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
		s.unwritten -= frameSize(len(e.bytes))
		s.kept.remove(Stats{Records: 1, Bytes: frameSize(len(e.bytes))})
	}
}
