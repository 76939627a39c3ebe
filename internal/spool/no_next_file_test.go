package spool_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
)

var errInodes = errors.New("no space left on device")

// If the next file cannot be created, the active one accepts what fits; only then are records
// rejected. A record that was rejected for its size does not block others.
func TestAppend_noNextFile_fillsActiveFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newUnreliableDisk(1, -1)
		r := start(t, disk, smallSegments)
		r.mustAppend(t, "first") // the spare file is the active one now, and another was created
		synctest.Wait()
		disk.setFailure("create", errInodes)
		stored := []string{"first"}
		var rejection error
		// records of 1,000 bytes and a frame header each: two files of 8 KiB have space for 14
		for n := 0; rejection == nil && n < 100; n++ {
			rec := fmt.Sprintf("%d:%s", n, strings.Repeat("x", 1000))
			if n == 10 {
				if err := r.Append(t.Context(), make([]byte, 7<<10)); !errors.Is(err, spool.ErrBroken) ||
					!errors.Is(err, errInodes) {
					t.Errorf("more than the file has space for: %v", err)
				}
			}
			if rejection = r.Append(t.Context(), []byte(rec)); rejection == nil {
				stored = append(stored, rec)
			}
			synctest.Wait()
		}
		if !errors.Is(rejection, spool.ErrBroken) || !errors.Is(rejection, errInodes) || len(stored) < 14 ||
			len(stored) > 16 {
			t.Errorf("%d stored, then: %v", len(stored), rejection)
		}
		if err := r.Ready(); err != nil {
			t.Errorf("a small record still fits: %v", err)
		}
		large := strings.Repeat("y", 2000)
		r.mustAppend(t, "small")
		disk.setFailure("create", nil)
		<-time.After(2 * time.Second)
		r.mustAppend(t, large)
		r.stop()
		start(t, disk.powerCycle(-1), smallSegments).wantDrained(t, append(stored, "small", large)...)
	})
}

// If no next file can be created, pending records are stored as far as the active file has space,
// and each call returns.
func TestAppend_noNextFile_storesWhatFits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newSlowDisk(10 * time.Millisecond)
		disk.setFailure("create", errInodes)
		r := start(t, disk, smallSegments)
		synctest.Wait()
		if err := r.Append(t.Context(), []byte("none")); !errors.Is(err, spool.ErrBroken) {
			t.Errorf("without any file: %v", err)
		}
		disk.setFailure("create", nil)
		<-time.After(2 * time.Second)
		disk.setFailure("create", errInodes)
		var wg sync.WaitGroup
		wg.Go(func() { r.mustAppend(t, "first") })
		<-time.After(5 * time.Millisecond) // it is written to the spare file
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() {
				errs[i] = r.Append(context.WithoutCancel(t.Context()),
					fmt.Appendf(nil, "%d:%s", i, strings.Repeat("x", 1000)))
			})
		}
		wg.Wait()
		stored := 0
		for _, err := range errs {
			switch {
			case err == nil:
				stored++
			case !errors.Is(err, spool.ErrBroken) || !errors.Is(err, errInodes):
				t.Error(err)
			}
		}
		if stored != 7 {
			t.Errorf("%d of 20 are stored in 8 KiB, want 7", stored)
		}
		if n := r.Stats().Records; n != 8 {
			t.Errorf("%d are counted, want 8", n)
		}
		r.mustAppend(t, "small")
		if got := r.drainAll(t); len(got) != 9 {
			t.Errorf("%d drained, want 9", len(got))
		}
		r.stop()
	})
}

// Records that were abandoned before their write use no space in the active file, so as many later
// records fit as without them.
func TestAppend_abandonedRecords_useNoSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newSlowDisk(100 * time.Millisecond)
		r := start(t, disk, smallSegments)
		<-time.After(time.Second)
		rec := strings.Repeat("x", 1000)
		var wg sync.WaitGroup
		wg.Go(func() { r.mustAppend(t, "first") })
		<-time.After(10 * time.Millisecond) // it is written
		for range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				if err := r.Append(ctx, []byte(rec)); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		<-time.After(time.Second) // another spare file was created
		disk.setFailure("create", errInodes)
		stored := 0
		for ; stored < 100 && r.Append(context.WithoutCancel(t.Context()), []byte(rec)) == nil; stored++ {
			synctest.Wait()
		}
		if stored != 14 {
			t.Errorf("%d records are stored in two files of 8 KiB, want 14", stored)
		}
		r.stop()
	})
}

// mustAppend appends a record that must be stored.
func (r *runningSpool) mustAppend(t *testing.T, rec string) {
	t.Helper()
	if err := r.Append(context.WithoutCancel(t.Context()), []byte(rec)); err != nil {
		t.Errorf("%.10s: %v", rec, err)
	}
}

// A record is rejected at once while the creation of the spare file stalls.
func TestAppend_fileCreationStalls_isRejectedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingDisk()
		disk.hang.Store(true)
		r := start(t, disk, smallSegments)
		<-time.After(500 * time.Millisecond)
		if err := r.Ready(); err != nil {
			t.Errorf("a file may take some time: %v", err)
		}
		<-time.After(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Append(ctx, []byte("first")); !errors.Is(err, spool.ErrBroken) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(disk.until)
		synctest.Wait()
		r.mustAppend(t, "second")
		<-time.After(time.Minute)
		if err := r.Ready(); err != nil {
			t.Errorf("with a spare file: %v", err)
		}
		r.stop()
	})
}

// An abandoned record uses no memory while the disk hangs, and causes no write afterwards. A record
// whose write is in progress may be stored or not.
func TestAppend_abandonedRecords_areFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingDisk()
		r := start(t, disk, smallSegments)
		synctest.Wait()
		disk.hang.Store(true)
		var wg sync.WaitGroup
		appendAndAbandon := func(record string, after time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			if err := r.Append(ctx, []byte(record)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", record, err)
			}
		}
		wg.Go(func() { appendAndAbandon("in progress", 100*time.Millisecond) })
		synctest.Wait()
		for n := range 5 {
			wg.Go(func() { appendAndAbandon(fmt.Sprint("waits ", n), time.Duration(500-n)*time.Millisecond) })
		}
		lastResult := make(chan error, 1)
		go func() { lastResult <- r.Append(t.Context(), []byte("patient")) }()
		synctest.Wait()
		if stats := r.Stats(); stats.Records != 7 {
			t.Errorf("while they wait: %+v", stats)
		}
		wg.Wait()
		if stats := r.Stats(); stats.Records != 2 {
			t.Errorf("after they were abandoned: %+v", stats)
		}
		close(disk.until)
		if err := <-lastResult; err != nil {
			t.Error(err)
		}
		r.wantDrained(t, "in progress", "patient")
		if stats := r.Stats(); stats.Records != 0 || stats.Bytes != 0 {
			t.Errorf("at the end: %+v", stats)
		}
		r.stop()
	})
}
