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
)

// damagedCount is how many damaged files a spool counts after it was drained twice.
func damagedCount(t *testing.T, r *running) int64 {
	t.Helper()
	r.all(t)
	r.all(t)
	return r.Stats().Damaged
}

func TestStats_damagedFile_isCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	overwrite := func(place int, text string) func([]byte) []byte {
		return func(file []byte) []byte { copy(file[place:], text); return file }
	}
	cut := func(size int) func([]byte) []byte { return func(file []byte) []byte { return file[:size] } }
	// Each of the two records takes 96 bytes, behind a head of 48.
	for name, damage := range map[string]func([]byte) []byte{
		"a record":                      overwrite(48+40, "8 bytes!"),
		"the length of a record":        overwrite(48+4, "8 bytes!"),
		"the beginning of a record":     overwrite(48, "8 bytes!"),
		"zeros for a record":            overwrite(48, strings.Repeat("\x00", 96)),
		"the last record":               overwrite(48+96+40, "8 bytes!"),
		"zeros in the last record":      overwrite(48+96, strings.Repeat("\x00", 16)),
		"both records":                  overwrite(48+40, strings.Repeat("damage", 20)),
		"behind the last record":        overwrite(48+2*96, "8 bytes!"),
		"the head":                      overwrite(8, "8 bytes!"),
		"zeros for the whole file":      func(file []byte) []byte { return make([]byte, len(file)) },
		"a file cut in its last record": cut(48 + 96 + 40),
		"a file cut in its head":        cut(40),
		"an empty file":                 cut(0),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			begin := func() *running {
				disk := folder(t, dir)
				return start(t, disk, small)
			}
			r := begin()
			for range 2 {
				r.keep(t, string(make([]byte, 64)))
			}
			r.stop()
			name := filepath.Join(dir, strings.Repeat("0", 19)+"1.spool")
			file, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, damage(file), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				r = begin()
				if n := damagedCount(t, r); n != 1 {
					t.Fatalf("%d damaged files are counted, want 1", n)
				}
				r.stop()
			}
			r = begin()
			if n := r.Stats().Damaged; n != 1 {
				t.Errorf("before anything is drained %d damaged files are counted, want 1", n)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*.damaged"))
			if err != nil || len(files) != 1 {
				t.Fatalf("set apart: %v, %v", files, err)
			}
			if err := os.Remove(files[0]); err != nil {
				t.Fatal(err)
			}
			if n := damagedCount(t, r); n != 0 {
				t.Errorf("after the removal %d damaged files are counted", n)
			}
			r.stop()
			if n := damagedCount(t, begin()); n != 0 {
				t.Errorf("after the removal and a restart %d damaged files are counted", n)
			}
		})
	}
}

// A file that cannot be renamed stays, and so does its count.
func TestStats_damagedFileThatCannotBeRenamed_isCounted(t *testing.T) {
	t.Parallel()
	disk := newVolatile(1, -1)
	r := start(t, disk, small)
	r.keep(t, "kept")
	r.stop()
	disk.only(t).data[48+33] ^= 1
	r = start(t, disk, small)
	disk.mu.Lock()
	disk.fail = map[string]error{"rename": errCut}
	disk.mu.Unlock()
	none := func([]spool.Record) error { return nil }
	if err := r.Drain(t.Context(), 10, 1<<20, none); !errors.Is(err, errCut) {
		t.Errorf("the file is not renamed: %v", err)
	}
	if err := r.Drain(t.Context(), 10, 1<<20, none); err != nil || r.Stats().Damaged != 1 {
		t.Errorf("%+v, %v", r.Stats(), err)
	}
}

// The log may refuse a record for what it holds: SetApart keeps it in a file of its own.
func TestStats_refusedRecord_isCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var r *running
	restart := func() {
		disk := folder(t, dir)
		r = start(t, disk, small)
	}
	restart()
	name, err := r.SetApart(spool.Record{At: time.Now(), Bytes: []byte("refused")})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.all(t)
		if s := r.Stats(); s.Refused != 1 || s.Damaged != 0 {
			t.Fatalf("%+v, want one refused record", s)
		}
		r.stop()
		restart()
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	r.all(t)
	if s := r.Stats(); s.Refused != 0 {
		t.Errorf("after the removal: %+v", s)
	}
}

// A drain that has read a file to its end does not remove it while a delivery is being written to it.
func TestDrain_writeUnderWay_keepsTheFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHanging()
		r := start(t, disk, small)
		r.keep(t, "first")
		synctest.Wait()
		disk.hang.Store(true)
		acknowledged, drained := make(chan error, 1), make(chan map[string]int, 1)
		go func() { acknowledged <- r.Append(t.Context(), []byte("second")) }()
		synctest.Wait()
		go func() { drained <- r.all(t) }()
		synctest.Wait()
		close(disk.until)
		if err := <-acknowledged; err != nil {
			t.Error(err)
		}
		got := <-drained
		maps.Copy(got, r.all(t))
		if want := map[string]int{"first": 1, "second": 1}; !maps.Equal(got, want) {
			t.Errorf("drained %v, want %v", got, want)
		}
		r.stop()
	})
}

// A drain that has read a file to its end does not remove it where a delivery was added since.
func TestDrain_recordAddedMeanwhile_keepsTheFile(t *testing.T) {
	t.Parallel()
	r := start(t, newVolatile(1, -1), small)
	defer r.stop()
	r.keep(t, "first")
	read := r.End()
	r.keep(t, "second")
	if r.Retire(read) {
		t.Error("the file with the second delivery may be removed")
	}
	if got, want := r.all(t), map[string]int{"first": 1, "second": 1}; !maps.Equal(got, want) {
		t.Errorf("drained %v, want %v", got, want)
	}
}
