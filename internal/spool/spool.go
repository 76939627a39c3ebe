// Package spool stores deliveries on the gateway's disk while PostgreSQL is unavailable. Package
// ingest appends records and drains them later. A record for which Append returned nil is in a file
// and synced. The package never interprets a record, and never writes to the same place of a file
// twice: each process starts a new file, and a file is deleted when all its records are drained.
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

// Errors of Append.
var (
	// ErrFull means that the stored records have reached Options.MaxBytes.
	ErrFull = errors.New("the spool is full")
	// ErrBroken means that the disk rejects writes or does not respond.
	ErrBroken = errors.New("the spool's disk accepts no writes")
)

// Options configure a spool.
type Options struct {
	// MaxBytes bounds the size of the stored frames in bytes; beyond it Append returns ErrFull.
	MaxBytes int64
	// SegmentBytes is the size of a file that is created in advance; 0 means 16 MiB. A larger
	// record gets a file of its own.
	SegmentBytes int64
	// StallAfter is how long a sync, or the creation of a file, may take before new records are
	// rejected at once; 0 means a second.
	StallAfter time.Duration
	Logger     *slog.Logger
}

const (
	defaultSegmentBytes = 16 << 20
	// maxBatchBytes bounds the data of one sync.
	maxBatchBytes = 4 << 20
	// retryInterval is how often the creation of a file is retried.
	retryInterval = time.Second
)

// Spool stores records on a disk. Run writes; Append and Drain may be called concurrently.
type Spool struct {
	o    Options
	disk Disk

	// number is the number of the newest file. spare is a file that was created in advance,
	// lastAttempt the time of the last failed creation. Only the writer uses these.
	number      uint64
	spare       *segment
	lastAttempt time.Time

	// pending are records that wait to be written. pendingBytes is the size of their frames and of
	// those being written. totals counts these and the records on the disk. ready gets a token when
	// records are pending, writeEnded when a write has ended.
	mu                sync.Mutex
	pending           []*pendingRecord
	pendingBytes      int64
	totals            Stats
	ready, writeEnded chan struct{}
	// active is the segment that is written to; sealed are segments that are only read, the oldest
	// first.
	active *segment
	sealed []*segment
	// setAside has the names of the damaged and quarantined files that still exist (Stats.Damaged,
	// Stats.Quarantined).
	setAside map[string]bool
	// writeStarted is the start of the write in progress, createStarted the start of the creation
	// of a file; zero if there is none. createErr is why no file could be created in advance.
	writeStarted  time.Time
	createStarted time.Time
	createErr     error
	// closing is true when no more records are accepted.
	closing bool

	draining sync.Mutex
}

// pendingRecord is a record that waits for its sync.
type pendingRecord struct {
	bytes []byte
	at    time.Time
	done  chan error
}

// Stats is the content of a spool.
type Stats struct {
	// Records and Bytes wait to be drained; Bytes is the size of their frames. For a damaged
	// segment they are counted by the headers of its frames.
	Records int64
	Bytes   int64
	// Oldest is the time of the oldest record's append; zero if there is none.
	Oldest time.Time
	// Damaged counts the files that could not be read completely and were not deleted yet,
	// including those of earlier processes.
	Damaged int64
	// Quarantined counts the quarantined records that were not deleted yet, including those of
	// earlier processes.
	Quarantined int64
}

// Open returns a spool with the records that an earlier process left on the disk. The spool owns
// the disk from now on.
func Open(disk Disk, o Options) (*Spool, error) {
	o.SegmentBytes, o.StallAfter = cmp.Or(o.SegmentBytes, defaultSegmentBytes), cmp.Or(o.StallAfter, time.Second)
	s := &Spool{o: o, disk: disk, ready: make(chan struct{}, 1), writeEnded: make(chan struct{}, 1),
		setAside: map[string]bool{}}
	names, err := disk.Names()
	if err != nil {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	slices.Sort(names) // the numbers have leading zeros
	for _, name := range names {
		if err := s.loadFile(name); err != nil {
			return nil, fmt.Errorf("open the spool: %w", err)
		}
	}
	return s, nil
}

const (
	segmentSuffix = ".spool"
	// temporarySuffix is the suffix of a file that is not durable yet and has no records.
	temporarySuffix = ".making"
	// damagedSuffix is the suffix of a segment that could not be read completely and needs review.
	damagedSuffix = ".damaged"
)

func segmentName(number uint64) string { return fmt.Sprintf("%020d%s", number, segmentSuffix) }

// loadFile loads a file of an earlier process.
func (s *Spool) loadFile(name string) error {
	if strings.HasSuffix(name, quarantineSuffix) {
		s.setAside[name] = true
		return nil
	}
	base, _, _ := strings.Cut(name, ".")
	number, err := strconv.ParseUint(base, 10, 64)
	if err != nil {
		return nil // not a file of a spool
	}
	s.number = max(s.number, number) // damaged files count too, so that no name is used twice
	switch {
	case strings.HasSuffix(name, temporarySuffix):
		return s.disk.Remove(name)
	case strings.HasSuffix(name, segmentSuffix+damagedSuffix):
		s.setAside[name] = true
		return nil
	case !strings.HasSuffix(name, segmentSuffix):
		return nil
	}
	g, err := s.reopen(name)
	if err != nil {
		return err
	}
	s.sealed = append(s.sealed, g)
	s.totals.add(g.stats)
	return nil
}

func (t *Stats) add(o Stats) {
	if o.Records > 0 && (t.Records == 0 || o.Oldest.Before(t.Oldest)) {
		t.Oldest = o.Oldest
	}
	t.Records += o.Records
	t.Bytes += o.Bytes
}

// Stats returns the current content.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.totals
	for name := range s.setAside {
		if strings.HasSuffix(name, quarantineSuffix) {
			stats.Quarantined++
		} else {
			stats.Damaged++
		}
	}
	return stats
}

// Ready returns why no record would be accepted now; nil if one would.
func (s *Spool) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rejectReason(0)
}

// StopAccepting makes Append reject all further records. From now on Stats shows what this process
// leaves behind, even while Run continues.
func (s *Spool) StopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
}

// rejectReason returns why a record of the given size is rejected at once. The caller has the lock.
func (s *Spool) rejectReason(record int) error {
	switch {
	case !s.writeStarted.IsZero() && time.Since(s.writeStarted) > s.o.StallAfter:
		return fmt.Errorf("%w: a write has taken more than %s", ErrBroken,
			time.Since(s.writeStarted).Round(time.Millisecond))
	case !s.createStarted.IsZero() && time.Since(s.createStarted) > s.o.StallAfter:
		return fmt.Errorf("%w: the creation of a file has taken more than %s", ErrBroken,
			time.Since(s.createStarted).Round(time.Millisecond))
	case s.closing:
		return fmt.Errorf("%w: %w", ErrBroken, errClosed)
	case s.createErr != nil && !s.fitsActive(record):
		return fmt.Errorf("%w: %w", ErrBroken, s.createErr)
	case record > MaxRecord || s.totals.Bytes+frameSize(record) > s.o.MaxBytes:
		return fmt.Errorf("%w: it has %d bytes of at most %d", ErrFull, s.totals.Bytes, s.o.MaxBytes)
	}
	return nil
}

// fitsActive returns true if the active segment has space for a record of the given size after all
// pending records. Such a record needs no free space on the disk. The caller has the lock.
func (s *Spool) fitsActive(record int) bool {
	return s.active != nil && s.pendingBytes+frameSize(record) <= s.active.free()
}

// Append stores a record and returns nil once it is synced. After an error the record may be stored
// or not. It waits at most until ctx ends. Errors: ErrFull, ErrBroken, that of ctx.
func (s *Spool) Append(ctx context.Context, record []byte) error {
	e := &pendingRecord{bytes: record, at: time.Now(), done: make(chan error, 1)}
	s.mu.Lock()
	if err := s.rejectReason(len(record)); err != nil {
		s.mu.Unlock()
		return err
	}
	s.pending = append(s.pending, e)
	s.pendingBytes += frameSize(len(record))
	s.totals.add(Stats{Records: 1, Bytes: frameSize(len(record)), Oldest: e.at})
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default: // a token is there already
	}
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		s.abandon(e)
		return fmt.Errorf("%w: %w", ErrBroken, context.Cause(ctx))
	}
}

// abandon drops a record whose caller no longer waits, unless its write is in progress. On a slow
// disk such records would delay all later ones and use memory that is not counted.
func (s *Spool) abandon(e *pendingRecord) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := slices.Index(s.pending, e); at >= 0 {
		s.pending = slices.Delete(s.pending, at, at+1)
		s.pendingBytes -= frameSize(len(e.bytes))
		s.totals.remove(Stats{Records: 1, Bytes: frameSize(len(e.bytes))})
	}
}
