package spool_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// damagedCount returns how many damaged files a spool counts after two drains.
func damagedCount(t *testing.T, r *runningSpool) int64 {
	t.Helper()
	r.drainAll(t)
	r.drainAll(t)
	return r.Stats().Damaged
}

func TestStats_damagedFile_isCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	overwrite := func(place int, text string) func([]byte) []byte {
		return func(file []byte) []byte { copy(file[place:], text); return file }
	}
	cut := func(size int) func([]byte) []byte { return func(file []byte) []byte { return file[:size] } }
	// Each of the two records takes 96 bytes, after a header of 48.
	for name, damage := range map[string]func([]byte) []byte{
		"a record":                            overwrite(48+40, "8 bytes!"),
		"the length of a record":              overwrite(48+4, "8 bytes!"),
		"the start of a record":               overwrite(48, "8 bytes!"),
		"zeros for a record":                  overwrite(48, strings.Repeat("\x00", 96)),
		"the last record":                     overwrite(48+96+40, "8 bytes!"),
		"zeros in the last record":            overwrite(48+96, strings.Repeat("\x00", 16)),
		"both records":                        overwrite(48+40, strings.Repeat("damage", 20)),
		"after the last record":               overwrite(48+2*96, "8 bytes!"),
		"the header":                          overwrite(8, "8 bytes!"),
		"zeros for the whole file":            func(file []byte) []byte { return make([]byte, len(file)) },
		"a file truncated in its last record": cut(48 + 96 + 40),
		"a file truncated in its header":      cut(40),
		"an empty file":                       cut(0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := startIn(t, dir)
			for range 2 {
				r.mustAppend(t, strings.Repeat("\x00", 64))
			}
			r.stop()
			name := filepath.Join(dir, strings.Repeat("0", 19)+"1.spool")
			file, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, damage(file), 0o600)
			}
			testkit.Must(t, err)
			for range 3 {
				r = startIn(t, dir)
				if n := damagedCount(t, r); n != 1 {
					t.Fatalf("%d damaged files are counted, want 1", n)
				}
				r.stop()
			}
			r = startIn(t, dir)
			if n := r.Stats().Damaged; n != 1 {
				t.Errorf("before the drain %d damaged files are counted, want 1", n)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*.damaged"))
			if err != nil || len(files) != 1 {
				t.Fatalf("damaged files: %v, %v", files, err)
			}
			testkit.Must(t, os.Remove(files[0]))
			if n := damagedCount(t, r); n != 0 {
				t.Errorf("after the removal %d damaged files are counted", n)
			}
			r.stop()
			if n := damagedCount(t, startIn(t, dir)); n != 0 {
				t.Errorf("after the removal and a restart %d damaged files are counted", n)
			}
		})
	}
}

// A file that cannot be renamed stays, and so does its count.
func TestStats_damagedFileThatCannotBeRenamed_isCounted(t *testing.T) {
	t.Parallel()
	disk := newUnreliableDisk(1, -1)
	r := start(t, disk, smallSegments)
	r.mustAppend(t, "kept")
	r.stop()
	disk.onlySegment(t).data[48+33] ^= 1
	r = start(t, disk, smallSegments)
	disk.setFailure("rename", errPowerLost)
	none := func([]spool.Record) error { return nil }
	if err := r.Drain(t.Context(), 10, 1<<20, none); !errors.Is(err, errPowerLost) {
		t.Errorf("the file is not renamed: %v", err)
	}
	if err := r.Drain(t.Context(), 10, 1<<20, none); err != nil || r.Stats().Damaged != 1 {
		t.Errorf("%+v, %v", r.Stats(), err)
	}
}

// If the log rejects the data of a record, Quarantine moves it to a file of its own.
func TestStats_quarantinedRecord_isCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startIn(t, dir)
	name, err := r.Quarantine(spool.Record{At: time.Now(), Bytes: []byte("refused")})
	testkit.Must(t, err)
	for range 3 {
		r.drainAll(t)
		if s := r.Stats(); s.Quarantined != 1 || s.Damaged != 0 {
			t.Fatalf("%+v, want one quarantined record", s)
		}
		r.stop()
		r = startIn(t, dir)
	}
	testkit.Must(t, os.Remove(filepath.Join(dir, name)))
	r.drainAll(t)
	if s := r.Stats(); s.Quarantined != 0 {
		t.Errorf("after the removal: %+v", s)
	}
}

// A drain that has read a file to its end does not delete it while a delivery is being written to
// it.
func TestDrain_writeInProgress_keepsTheFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHangingDisk()
		r := start(t, disk, smallSegments)
		r.mustAppend(t, "first")
		synctest.Wait()
		disk.hang.Store(true)
		acknowledged, drained := make(chan error, 1), make(chan map[string]int, 1)
		go func() { acknowledged <- r.Append(t.Context(), []byte("second")) }()
		synctest.Wait()
		go func() { drained <- r.drainAll(t) }()
		synctest.Wait()
		close(disk.until)
		if err := <-acknowledged; err != nil {
			t.Error(err)
		}
		got := <-drained
		maps.Copy(got, r.drainAll(t))
		testkit.Equal(t, "drained records", map[string]int{"first": 1, "second": 1}, got)
		r.stop()
	})
}

// A drain that has read a file to its end does not delete it if a delivery was added since.
func TestDrain_recordAddedMeanwhile_keepsTheFile(t *testing.T) {
	t.Parallel()
	r := start(t, newUnreliableDisk(1, -1), smallSegments)
	defer r.stop()
	r.mustAppend(t, "first")
	read := r.End()
	r.mustAppend(t, "second")
	if r.TryDrop(read) {
		t.Error("the file with the second delivery may be deleted")
	}
	r.wantDrained(t, "first", "second")
}
