package spool_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// runningSpool is a spool whose writer runs.
type runningSpool struct {
	*spool.Spool
	stop func()
}

func run(t *testing.T, disk spool.Disk, o spool.Options) (*runningSpool, error) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := spool.Open(disk, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	r := &runningSpool{Spool: s, stop: sync.OnceFunc(func() { cancel(); <-done })}
	t.Cleanup(r.stop)
	return r, nil
}

func start(t *testing.T, disk spool.Disk, o spool.Options) *runningSpool {
	t.Helper()
	r, err := run(t, disk, o)
	testkit.Must(t, err)
	return r
}

// startIn starts a spool in a folder, with small files.
func startIn(t *testing.T, dir string) *runningSpool {
	t.Helper()
	return start(t, folder(t, dir), smallSegments)
}

func folder(t *testing.T, dir string) spool.Disk {
	t.Helper()
	disk, err := spool.OpenFolder(dir)
	testkit.Must(t, err)
	return disk
}

var smallSegments = spool.Options{MaxBytes: 1 << 30, SegmentBytes: 8 << 10}

// drainAll drains all records, and counts how often each one came.
func (r *runningSpool) drainAll(t *testing.T) map[string]int {
	t.Helper()
	got := map[string]int{}
	if err := r.Drain(t.Context(), 7, 4<<10, func(batch []spool.Record) error {
		for _, rec := range batch {
			got[string(rec.Bytes)]++
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	return got
}

// wantDrained drains all records, and checks that they are these, each one once.
func (r *runningSpool) wantDrained(t *testing.T, want ...string) {
	t.Helper()
	once := map[string]int{}
	for _, rec := range want {
		once[rec] = 1
	}
	testkit.Equal(t, "drained records", once, r.drainAll(t))
}

func record(rnd *rand.Rand, n int) string {
	return fmt.Sprintf("%d:%s", n, strings.Repeat("x", rnd.IntN(3000)))
}

var seeds = flag.Int("spool.seeds", 200, "number of disks that lose their power or a bit; a third of them with -short")

func randomDisks() uint64 {
	if testing.Short() {
		return uint64(*seeds / 3)
	}
	return uint64(*seeds)
}

// Every record for which Append returned nil is drained after a power failure at any call, and no
// record that was never appended.
func TestSpool_powerFailure_losesNoAcknowledgedRecord(t *testing.T) {
	t.Parallel()
	acknowledged, powerFailures := 0, 0
	for seed := range randomDisks() {
		rnd := rand.New(rand.NewPCG(seed, 2))
		disk := newUnreliableDisk(seed, 5+rnd.IntN(400))
		want, given := map[string]bool{}, map[string]bool{}
		drained := map[string]bool{}
		n := 0
		for range 3 { // several processes, each ended by a power failure
			if r, err := run(t, disk, smallSegments); err == nil {
				appendAndDrain(t, r, rnd, &n, want, given, drained)
				r.stop()
			}
			disk = disk.powerCycle(5 + rnd.IntN(400))
			powerFailures++
		}
		disk.callsLeft = -1
		got := start(t, disk, smallSegments).drainAll(t)
		for rec := range want {
			if got[rec] == 0 && !drained[rec] {
				t.Fatalf("seed %d: record %.20q was acknowledged and is lost", seed, rec)
			}
		}
		for rec := range got {
			if !given[rec] {
				t.Fatalf("seed %d: record %.20q was never appended", seed, rec)
			}
		}
		acknowledged += len(want)
	}
	t.Logf("%d power failures, %d records acknowledged and found", powerFailures, acknowledged)
	if acknowledged < 1000 {
		t.Errorf("only %d records were acknowledged: too few for this test", acknowledged)
	}
}

// appendAndDrain appends from several goroutines and drains concurrently, until the power fails. It
// adds the acknowledged records to want, all appended ones to given, and the drained ones to
// drained.
func appendAndDrain(t *testing.T, r *runningSpool, rnd *rand.Rand, n *int, want, given, drained map[string]bool) {
	t.Helper()
	var mu sync.Mutex
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	records := make([][]string, 4)
	for i := range records {
		for range 12 {
			*n++
			records[i] = append(records[i], record(rnd, *n))
			given[records[i][len(records[i])-1]] = true
		}
	}
	drain := rnd.IntN(2) == 0
	for _, mine := range records {
		wg.Go(func() {
			for _, rec := range mine {
				if r.Append(ctx, []byte(rec)) != nil {
					return
				}
				mu.Lock()
				want[rec] = true
				mu.Unlock()
			}
		})
	}
	if drain {
		wg.Go(func() {
			_ = r.Drain(ctx, 5, 4<<10, func(batch []spool.Record) error {
				mu.Lock()
				defer mu.Unlock()
				for _, rec := range batch {
					drained[string(rec.Bytes)] = true
				}
				return nil
			})
		})
	}
	wg.Wait()
}

func TestDrain_restart_returnsNothingTwice(t *testing.T) {
	t.Parallel()
	r := startIn(t, t.TempDir())
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				r.mustAppend(t, fmt.Sprintf("%d/%d", i, j))
			}
		})
	}
	failed := errors.New("away")
	deadline := time.Now().Add(time.Minute)
	for done := false; !done; {
		if time.Now().After(deadline) {
			t.Fatal("not all were drained")
		}
		err := r.Drain(t.Context(), 3, 1<<20, func(batch []spool.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if rand.IntN(3) == 0 {
				return failed
			}
			for _, rec := range batch {
				got[string(rec.Bytes)]++
			}
			return nil
		})
		if err != nil && !errors.Is(err, failed) {
			t.Fatal(err)
		}
		mu.Lock()
		done = len(got) == 400
		mu.Unlock()
	}
	wg.Wait()
	for rec, n := range got {
		if n != 1 {
			t.Errorf("%s was drained %d times", rec, n)
		}
	}
	if s := r.Stats(); s != (spool.Stats{}) {
		t.Errorf("after the drain: %+v", s)
	}
}

func TestDrain_allRecordsDrained_filesAreDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startIn(t, dir)
	var records []string
	for i := range 50 {
		records = append(records, strings.Repeat(string(rune('0'+i)), 1000))
		r.mustAppend(t, records[i])
	}
	for _, when := range []string{"before a restart", "after it"} {
		if s := r.Stats(); s.Records != 50 || s.Bytes < 50_000 || s.Oldest.IsZero() {
			t.Errorf("%s: %+v", when, s)
		}
		r.stop()
		r = startIn(t, dir)
	}
	r.wantDrained(t, records...)
	r.stop()
	left, _ := filepath.Glob(filepath.Join(dir, "*.spool*"))
	if len(left) != 0 {
		t.Errorf("files: %v", left)
	}
}

func TestOpenFolder_secondProcess_isRejected(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := folder(t, dir)
	if _, err := spool.OpenFolder(dir); !errors.Is(err, spool.ErrInUse) {
		t.Errorf("a second process: %v", err)
	}
	runtime.KeepAlive(first) // the collector closes a folder that is not used, which ends its lock
}

// A damaged record loses only itself, and is reported.
func TestDrain_flippedBit_losesOneRecord(t *testing.T) {
	t.Parallel()
	for seed := range randomDisks() {
		rnd := rand.New(rand.NewPCG(seed, 3))
		disk := newUnreliableDisk(seed, -1)
		r := start(t, disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 64 << 10})
		want := map[string]bool{}
		for i := range 10 {
			rec := record(rnd, i)
			want[rec] = true
			r.mustAppend(t, rec)
		}
		r.stop()
		disk.flipBit()
		r = start(t, disk, smallSegments)
		got := r.drainAll(t)
		missing := 0
		for rec := range want {
			if got[rec] == 0 {
				missing++
			}
		}
		for rec := range got {
			if !want[rec] {
				t.Errorf("seed %d: %.30q was never appended", seed, rec)
			}
		}
		s := r.Stats()
		if missing > 1 || missing == 1 && s.Damaged != 1 {
			t.Errorf("seed %d: %d records are missing, and %d files are damaged", seed, missing, s.Damaged)
		}
		if s.Records != 0 || s.Bytes != 0 {
			t.Errorf("seed %d: still counted: %+v", seed, s)
		}
	}
}

// The body of a delivery is never read as a record of its own, however damaged its frame is. This
// holds for bytes of a frame that was stored before, and for a frame that was made without the
// file's salt.
func TestDrain_bodyWithForgedFrame_isNotReadAsRecord(t *testing.T) {
	t.Parallel()
	disk := newUnreliableDisk(1, -1)
	r := start(t, disk, smallSegments)
	r.mustAppend(t, "kept")
	file := disk.onlySegment(t)
	frame := bytes.Clone(file.data[48:96])
	if !bytes.Contains(frame, []byte("kept")) {
		t.Fatalf("the first frame is %q", frame)
	}
	made := bytes.Clone(file.data[44:48]) // the magic bytes of frames, which a client does not know
	made = binary.LittleEndian.AppendUint32(made, 4)
	made = binary.LittleEndian.AppendUint64(made, 1)
	sum := sha256.Sum256(slices.Concat(binary.LittleEndian.AppendUint64(nil, 96+32+48), made, []byte("made")))
	made = slices.Concat(made, sum[:16], []byte("made"), make([]byte, 12))
	r.mustAppend(t, string(slices.Concat(frame, made)))
	r.stop()
	file.data[96+4] ^= 1 // the length
	r = start(t, disk, smallSegments)
	r.wantDrained(t, "kept")
	if r.Stats().Damaged != 1 {
		t.Error("the file is not kept as damaged")
	}
}

func TestAppend_fullSpool_isRejected(t *testing.T) {
	t.Parallel()
	r := start(t, folder(t, t.TempDir()), spool.Options{MaxBytes: 4 << 10, SegmentBytes: 8 << 10})
	var err error
	n := 0
	for ; err == nil; n++ {
		err = r.Append(t.Context(), make([]byte, 1000))
	}
	if !errors.Is(err, spool.ErrFull) || n < 3 || n > 5 {
		t.Errorf("after %d records: %v", n, err)
	}
	r.drainAll(t)
	if err := r.Append(t.Context(), make([]byte, 1000)); err != nil {
		t.Errorf("after the drain: %v", err)
	}
}

func TestAppend_largeRecord_hasItsOwnFile(t *testing.T) {
	t.Parallel()
	r := startIn(t, t.TempDir())
	for _, size := range []int{10, 100_000, 10, 3 << 20} {
		r.mustAppend(t, strings.Repeat("y", size))
	}
	if got := r.drainAll(t); len(got) != 3 || got[strings.Repeat("y", 10)] != 2 {
		t.Errorf("%d records", len(got))
	}
}

// After a failed sync, confirmed records are found, the failed ones are rejected, and nothing is
// written after them.
func TestAppend_failedSync_isNotAcknowledged(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"write", "sync"} {
		disk := newUnreliableDisk(7, -1)
		r := start(t, disk, smallSegments)
		r.mustAppend(t, "before")
		disk.setFailure(kind, errors.New("input/output error"))
		if err := r.Append(t.Context(), []byte("during")); !errors.Is(err, spool.ErrBroken) {
			t.Errorf("%s fails: %v", kind, err)
		}
		disk.setFailure(kind, nil)
		deadline := time.Now().Add(30 * time.Second)
		for err := errors.New(""); err != nil && time.Now().Before(deadline); {
			err = r.Append(t.Context(), []byte("after"))
		}
		if disk.inOneFile("before", "after") {
			t.Errorf("%s: later records are in one file with failed ones", kind)
		}
		r.stop()
		if got := start(t, disk.powerCycle(-1), smallSegments).drainAll(t); got["before"] != 1 || got["after"] != 1 {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

func (d *unreliableDisk) setFailure(kind string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[kind] = err
}

// A caller waits for a stalled disk no longer than its own time.
func TestAppend_stalledDisk_isRejectedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingDisk()
		r := start(t, disk, smallSegments)
		synctest.Wait()
		disk.hang.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Append(ctx, []byte("first")); !errors.Is(err, spool.ErrBroken) ||
			time.Since(began) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if err := r.Append(t.Context(), []byte("second")); !errors.Is(err, spool.ErrBroken) ||
			time.Since(began) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(disk.until)
		synctest.Wait()
		r.mustAppend(t, "third")
		r.stop()
	})
}

// On a disk whose sync takes 2 ms, many senders are acknowledged many times faster than with a sync
// for each delivery. Time is simulated, so the machine does not matter.
func TestAppend_manyCallers_shareSyncs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const senders, each, sync2ms = 64, 20, 2 * time.Millisecond
		r := start(t, newSlowDisk(sync2ms), smallSegments)
		synctest.Wait()
		began := time.Now()
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				for range each {
					r.mustAppend(t, string(make([]byte, 100)))
				}
			})
		}
		wg.Wait()
		alone := senders * each * sync2ms
		if elapsed := time.Since(began); elapsed*5 > alone {
			t.Errorf("%d deliveries took %s; with a sync for each they would take %s", senders*each, elapsed, alone)
		} else {
			t.Logf("%d deliveries took %s; with a sync for each they would take %s: %.0f times as fast", senders*each,
				elapsed, alone, float64(alone)/float64(elapsed))
		}
		r.stop()
	})
}

// Stats stay true after StopAccepting: nothing more is accepted, accepted records are written, and
// the spool can still be drained.
func TestStopAccepting_statsStayTrue(t *testing.T) {
	t.Parallel()
	s := startIn(t, t.TempDir())
	s.mustAppend(t, "before")
	s.StopAccepting()
	if err := s.Append(t.Context(), []byte("after")); !errors.Is(err, spool.ErrBroken) || s.Stats().Records != 1 {
		t.Errorf("%v, %+v", err, s.Stats())
	}
	s.wantDrained(t, "before")
}

func TestMain(m *testing.M) { testkit.Main(m) }
