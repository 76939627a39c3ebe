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
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// running is a spool whose writer runs.
type running struct {
	*spool.Spool
	stop func()
}

func run(t *testing.T, disk spool.Disk, o spool.Options) (*running, error) {
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
	r := &running{Spool: s, stop: sync.OnceFunc(func() { cancel(); <-done })}
	t.Cleanup(r.stop)
	return r, nil
}

func start(t *testing.T, disk spool.Disk, o spool.Options) *running {
	t.Helper()
	r, err := run(t, disk, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var small = spool.Options{MaxBytes: 1 << 30, SegmentBytes: 8 << 10}

// all drains what is kept, and counts how often each record came.
func (r *running) all(t *testing.T) map[string]int {
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

func record(rnd *rand.Rand, n int) string {
	return fmt.Sprintf("%d:%s", n, strings.Repeat("x", rnd.IntN(3000)))
}

var seeds = flag.Int("spool.seeds", 200, "how many disks lose their power")

// TestAcknowledgedSurvivesAPowerCut: whatever Append has answered nil for comes out after the power went, at whichever call, and nothing that was never given comes out.
func TestAcknowledgedSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	acknowledged, cuts := 0, 0
	for seed := range uint64(*seeds) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		disk := newVolatile(seed, 5+rnd.IntN(400))
		want, given := map[string]bool{}, map[string]bool{}
		taken := map[string]bool{}
		n := 0
		for range 3 { // lives, each ended by a cut
			if r, err := run(t, disk, small); err == nil {
				live(t, r, rnd, &n, want, given, taken)
				r.stop()
			}
			disk = disk.cut(5 + rnd.IntN(400))
			cuts++
		}
		disk.left = -1
		got := start(t, disk, small).all(t)
		for rec := range want {
			if got[rec] == 0 && !taken[rec] {
				t.Fatalf("seed %d: record %.20q was acknowledged and is lost", seed, rec)
			}
		}
		for rec := range got {
			if !given[rec] {
				t.Fatalf("seed %d: record %.20q was never given", seed, rec)
			}
		}
		acknowledged += len(want)
	}
	t.Logf("%d cuts, %d records acknowledged and found", cuts, acknowledged)
	if acknowledged < 1000 {
		t.Errorf("only %d records were acknowledged: the test proves little", acknowledged)
	}
}

// live appends from several goroutines and drains meanwhile, until the power is gone. What is taken was drained: it is somewhere else now.
func live(t *testing.T, r *running, rnd *rand.Rand, n *int, want, given, taken map[string]bool) {
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
					taken[string(rec.Bytes)] = true
				}
				return nil
			})
		})
	}
	wg.Wait()
}

func TestNothingComesTwice(t *testing.T) {
	t.Parallel()
	r := start(t, folder(t, t.TempDir()), small)
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				r.keep(t, string(fmt.Appendf(nil, "%d/%d", i, j)))
			}
		})
	}
	failed := errors.New("away")
	deadline := time.Now().Add(time.Minute)
	for done := false; !done; {
		if time.Now().After(deadline) {
			t.Fatal("not all came")
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
			t.Errorf("%s came %d times", rec, n)
		}
	}
	if s := r.Stats(); s != (spool.Stats{}) {
		t.Errorf("after all was drained: %+v", s)
	}
}

func folder(t *testing.T, dir string) spool.Disk {
	t.Helper()
	disk, err := spool.Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return disk
}

func TestFilesGoWhenAllIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk := folder(t, dir)
	r := start(t, disk, small)
	for i := range 50 {
		r.keep(t, string(bytes.Repeat([]byte{byte(i)}, 1000)))
	}
	if s := r.Stats(); s.Records != 50 || s.Bytes < 50_000 || s.Oldest.IsZero() {
		t.Errorf("%+v", s)
	}
	r.stop()
	r = start(t, folder(t, dir), small)
	if s := r.Stats(); s.Records != 50 || s.Bytes < 50_000 || s.Oldest.IsZero() {
		t.Errorf("after a restart: %+v", s)
	}
	if got := r.all(t); len(got) != 50 {
		t.Errorf("%d records", len(got))
	}
	r.stop()
	left, _ := filepath.Glob(filepath.Join(dir, "*.spool*"))
	if len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestOneProcessHasAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := spool.Folder(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := spool.Folder(dir); !errors.Is(err, spool.ErrInUse) {
		t.Errorf("a second one: %v", err)
	}
}

// TestFlippedBits: a damaged record costs itself alone, and is told.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		disk := newVolatile(seed, -1)
		r := start(t, disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 64 << 10})
		want := map[string]bool{}
		for i := range 10 {
			rec := record(rnd, i)
			want[rec] = true
			r.keep(t, rec)
		}
		r.stop()
		disk.flip()
		r = start(t, disk, small)
		got := r.all(t)
		missing := 0
		for rec := range want {
			if got[rec] == 0 {
				missing++
			}
		}
		for rec := range got {
			if !want[rec] {
				t.Errorf("seed %d: %.30q was never given", seed, rec)
			}
		}
		s := r.Stats()
		if missing > 1 || missing == 1 && s.Damaged != 1 {
			t.Errorf("seed %d: %d records are missing, and %d files are set apart", seed, missing, s.Damaged)
		}
		if s.Records != 0 || s.Bytes != 0 {
			t.Errorf("seed %d: still counted: %+v", seed, s)
		}
	}
}

// TestABodyIsNoFrame: what a stranger's body holds is never read as a record of its own, however damaged the one around it is: neither what was kept before, nor what is made without the file's salt.
func TestABodyIsNoFrame(t *testing.T) {
	t.Parallel()
	disk := newVolatile(1, -1)
	r := start(t, disk, small)
	r.keep(t, "kept")
	file := disk.only(t)
	kept := bytes.Clone(file.data[48:96])
	if !bytes.Contains(kept, []byte("kept")) {
		t.Fatalf("the first frame is %q", kept)
	}
	made := bytes.Clone(file.data[44:48]) // what frames begin with, which no stranger knows
	made = binary.LittleEndian.AppendUint32(made, 4)
	made = binary.LittleEndian.AppendUint64(made, 1)
	sum := sha256.Sum256(slices.Concat(binary.LittleEndian.AppendUint64(nil, 96+32+48), made, []byte("made")))
	made = slices.Concat(made, sum[:16], []byte("made"), make([]byte, 12))
	r.keep(t, string(slices.Concat(kept, made)))
	r.stop()
	file.data[96+4] ^= 1 // the length
	r = start(t, disk, small)
	if got := r.all(t); len(got) != 1 || got["kept"] != 1 {
		t.Errorf("came out: %v", got)
	}
	if r.Stats().Damaged != 1 {
		t.Error("the file was not set apart")
	}
}

func TestFull(t *testing.T) {
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
	r.all(t)
	if err := r.Append(t.Context(), make([]byte, 1000)); err != nil {
		t.Errorf("after it was drained: %v", err)
	}
}

func TestALargeRecordHasAFileOfItsOwn(t *testing.T) {
	t.Parallel()
	r := start(t, folder(t, t.TempDir()), small)
	for _, size := range []int{10, 100_000, 10, 3 << 20} {
		r.keep(t, string(bytes.Repeat([]byte("y"), size)))
	}
	if got := r.all(t); len(got) != 3 || got[strings.Repeat("y", 10)] != 2 {
		t.Errorf("%d records", len(got))
	}
}

// TestAFailedSyncAcknowledgesNothing: what was confirmed before is found, what failed was refused, and nothing is written behind it.
func TestAFailedSyncAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"write", "sync"} {
		disk := newVolatile(7, -1)
		r := start(t, disk, small)
		r.keep(t, "before")
		disk.set(kind, errors.New("input/output error"))
		if err := r.Append(t.Context(), []byte("during")); !errors.Is(err, spool.ErrBroken) {
			t.Errorf("%s fails: %v", kind, err)
		}
		disk.set(kind, nil)
		deadline := time.Now().Add(30 * time.Second)
		for err := errors.New(""); err != nil && time.Now().Before(deadline); {
			err = r.Append(t.Context(), []byte("after"))
		}
		if disk.together("before", "after") {
			t.Errorf("%s: what came after is in one file with what failed", kind)
		}
		r.stop()
		if got := start(t, disk.cut(-1), small).all(t); got["before"] != 1 || got["after"] != 1 {
			t.Errorf("%s: %v", kind, got)
		}
	}
}

func (d *volatile) set(kind string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[kind] = err
}

// TestAHangingDiskRefusesAtOnce: whoever waits for it waits no longer than its own time.
func TestAHangingDiskRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHanging()
		r := start(t, disk, small)
		synctest.Wait()
		disk.hang.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Append(ctx, []byte("first")); !errors.Is(err, spool.ErrBroken) || time.Since(began) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if err := r.Append(t.Context(), []byte("second")); !errors.Is(err, spool.ErrBroken) || time.Since(began) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(disk.until)
		synctest.Wait()
		r.keep(t, "third")
		r.stop()
	})
}

// TestDeliveriesShareASync: on a disk whose sync takes 2 ms, many senders are acknowledged many times as fast as with a sync for each delivery. Time is a bubble's, so that the machine does not matter.
func TestDeliveriesShareASync(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const senders, each, sync2ms = 64, 20, 2 * time.Millisecond
		r := start(t, newSlow(sync2ms), small)
		synctest.Wait()
		began := time.Now()
		var wg sync.WaitGroup
		for range senders {
			wg.Go(func() {
				for range each {
					r.keep(t, string(make([]byte, 100)))
				}
			})
		}
		wg.Wait()
		alone := senders * each * sync2ms
		if took := time.Since(began); took*5 > alone {
			t.Errorf("%d deliveries took %s; with a sync for each they would take %s", senders*each, took, alone)
		} else {
			t.Logf("%d deliveries took %s; with a sync for each they would take %s: %.0f times as fast", senders*each, took, alone, float64(alone)/float64(took))
		}
		r.stop()
	})
}

// What is told of a sealed spool stays true: nothing more is taken, what was taken before is written, and it can still be drained.
func TestSealed(t *testing.T) {
	t.Parallel()
	disk := folder(t, t.TempDir())
	s := start(t, disk, small)
	s.keep(t, "before")
	s.Seal()
	if err := s.Append(t.Context(), []byte("after")); !errors.Is(err, spool.ErrBroken) || s.Stats().Records != 1 {
		t.Errorf("%v, %+v", err, s.Stats())
	}
	if got := s.all(t); len(got) != 1 || got["before"] != 1 {
		t.Errorf("%v", got)
	}
}

func TestMain(m *testing.M) { testkit.Main(m) }
