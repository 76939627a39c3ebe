package spool_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// inspect inspects a folder, and counts how often each record is reported.
func inspect(t *testing.T, dir string) (map[string]int, []*spool.FileReport) {
	t.Helper()
	got := map[string]int{}
	found, err := spool.Inspect(dir,
		func(_ *spool.FileReport, rec spool.Record) error { got[string(rec.Bytes)]++; return nil })
	testkit.Must(t, err)
	return got, found
}

// filledFolder returns the folder of a process that has ended, with the records 0 to n-1.
func filledFolder(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	r := startIn(t, dir)
	for i := range n {
		r.mustAppend(t, fmt.Sprint("record ", i))
	}
	r.stop()
	return dir
}

// The files of an ended process are reported, with their damage. Nothing changes.
func TestInspect_damagedFiles_areReported(t *testing.T) {
	t.Parallel()
	dir := filledFolder(t, 10)
	files, _ := filepath.Glob(filepath.Join(dir, "*.spool"))
	if len(files) != 1 {
		t.Fatalf("%v", files)
	}
	whole, err := os.ReadFile(files[0])
	testkit.Must(t, err)
	for _, c := range []struct {
		what   string
		change func([]byte) []byte
		left   int
		lost   int
		torn   bool
		headed bool
	}{
		{"whole", func(b []byte) []byte { return b }, 10, 0, false, true},
		{"a bit in the middle", func(b []byte) []byte { b[48+3*48+35] ^= 1; return b }, 9, 1, false, true},
		{"a bit in the last", func(b []byte) []byte { b[48+9*48+35] ^= 1; return b }, 9, 0, true, true},
		{"truncated in the last", func(b []byte) []byte { return b[:48+9*48+20] }, 9, 0, true, true},
		{"the header", func(b []byte) []byte { b[20] ^= 1; return b }, 0, 0, false, false},
		{"truncated in the header", func(b []byte) []byte { return b[:20] }, 0, 0, false, false},
		{"empty", func([]byte) []byte { return nil }, 0, 0, false, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			bytes := c.change(slices.Clone(whole))
			for _, name := range []string{"00000000000000000001.spool", "00000000000000000002.spool.making", "lock",
				"other"} {
				testkit.Must(t, os.WriteFile(filepath.Join(dir, name), bytes, 0o600))
			}
			got, found := inspect(t, dir)
			if len(got) != c.left || len(found) != 1 {
				t.Fatalf("%d records, %d files", len(got), len(found))
			}
			if f := found[0]; f.Records != int64(c.left) || f.LostPlaces != c.lost || f.TornTail != c.torn ||
				(f.Unreadable == nil) != c.headed || f.State != spool.StatePending {
				t.Errorf("%+v", f)
			}
			if after, err := os.ReadFile(filepath.Join(dir, found[0].Name)); err != nil ||
				string(after) != string(bytes) {
				t.Errorf("the file has changed: %v", err)
			}
		})
	}
	if _, err := spool.Inspect(filepath.Join(dir, "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// While a process appends and drains, nothing looks damaged. Each acknowledged record is in the
// folder or drained, and no other record is reported.
func TestInspect_runningSpool_reportsNoDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := start(t, folder(t, dir), spool.Options{MaxBytes: 1 << 30, SegmentBytes: 64 << 10})
	var mu sync.Mutex
	acknowledged, drainedRecords := map[string]bool{}, map[string]bool{}
	more := make(chan struct{}, 1)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 300 {
				rec := fmt.Sprintf("%d/%d %0*d", i, j, j*7%3000, 0)
				if err := r.Append(t.Context(), []byte(rec)); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged[rec] = true
				mu.Unlock()
				select {
				case more <- struct{}{}:
				default:
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for {
			select {
			case <-ended:
				return
			case <-more:
			}
			_ = r.Drain(t.Context(), 50, 1<<20, func(batch []spool.Record) error {
				mu.Lock()
				defer mu.Unlock()
				for _, rec := range batch {
					drainedRecords[string(rec.Bytes)] = true
				}
				return nil
			})
		}
	}()
	defer func() { <-drained }()
	for inspections := 0; ; inspections++ {
		mu.Lock()
		before := maps.Clone(acknowledged)
		mu.Unlock()
		got, found := inspect(t, dir)
		for _, f := range found {
			if f.LostPlaces > 0 || f.Unreadable != nil {
				t.Fatalf("%+v", f)
			}
		}
		mu.Lock()
		for rec := range before {
			if got[rec] != 1 && !drainedRecords[rec] {
				t.Fatalf("%.20q was acknowledged, and is reported %d times", rec, got[rec])
			}
		}
		mu.Unlock()
		select {
		case <-ended:
			if inspections == 0 {
				t.Error("nothing was inspected meanwhile")
			}
			return
		default:
		}
	}
}

func TestName_sameFolder_staysTheSame(t *testing.T) {
	t.Parallel()
	folder := func(dir string) spool.Disk {
		t.Helper()
		disk := folder(t, dir)
		t.Cleanup(func() { _ = disk.Close() })
		return disk
	}
	dir := t.TempDir()
	disk := folder(dir)
	if name, err := spool.NameOfFolder(dir); err != nil || name != "" {
		t.Errorf("before the name exists: %q, %v", name, err)
	}
	first, err := spool.Name(disk)
	if err != nil || len(first) < 20 {
		t.Fatal(first, err)
	}
	if again, err := spool.Name(disk); err != nil || again != first {
		t.Errorf("%q, %v, was %q", again, err, first)
	}
	if read, err := spool.NameOfFolder(dir); err != nil || read != first {
		t.Errorf("read: %q, %v, was %q", read, err, first)
	}
	if other, err := spool.Name(folder(t.TempDir())); err != nil || other == first {
		t.Errorf("another folder: %q, %v", other, err)
	}
	for _, content := range []string{"", "\x00\x00\x00"} { // a folder of an earlier version, after a power failure
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "name"), []byte(content), 0o600))
		if fresh, err := spool.Name(disk); err != nil || len(fresh) != len(first) || fresh == first {
			t.Errorf("%q, %v", fresh, err)
		}
	}
	testkit.Must(t, os.RemoveAll(dir))
	if _, err := spool.Name(disk); err == nil {
		t.Error("a missing folder has a name")
	}
}

// A name that was returned stays the folder's name after a power failure; otherwise a redaction
// would wait for a spool that no longer exists. The power fails after each number of calls in the
// process that creates the name. If that process has not returned the name, the power also fails in
// the one that reads it.
func TestName_powerFailure_staysTheSame(t *testing.T) {
	t.Parallel()
	returned := 0
	for seed := range uint64(20) {
		for calls := range 20 {
			disk := newUnreliableDisk(seed, calls)
			name, err := spool.Name(disk)
			if err != nil {
				disk.callsLeft = calls // the process ended, the disk did not
				name, err = spool.Name(disk)
			}
			if err != nil && !errors.Is(err, errPowerLost) {
				t.Fatal(err)
			}
			after, err2 := spool.Name(disk.powerCycle(-1))
			if err2 != nil || len(after) < 20 || err == nil && after != name {
				t.Errorf("seed %d, %d calls: %q, %v; the returned name was %q, %v", seed, calls, after, err2, name, err)
			}
			if err == nil {
				returned++
			}
		}
	}
	if returned == 0 {
		t.Error("no name was ever returned")
	}
}
