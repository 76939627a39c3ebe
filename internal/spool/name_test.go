package spool_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/postern-gateway/postern/internal/spool"
)

func TestAFolderKeepsItsName(t *testing.T) {
	t.Parallel()
	folder := func(dir string) spool.Disk {
		t.Helper()
		disk, err := spool.Folder(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = disk.Close() })
		return disk
	}
	dir := t.TempDir()
	disk := folder(dir)
	if name, err := spool.NameIn(dir); err != nil || name != "" {
		t.Errorf("before it has one: %q, %v", name, err)
	}
	first, err := spool.Name(disk)
	if err != nil || len(first) < 20 {
		t.Fatal(first, err)
	}
	if again, err := spool.Name(disk); err != nil || again != first {
		t.Errorf("%q, %v, was %q", again, err, first)
	}
	if read, err := spool.NameIn(dir); err != nil || read != first {
		t.Errorf("read: %q, %v, was %q", read, err, first)
	}
	if other, err := spool.Name(folder(t.TempDir())); err != nil || other == first {
		t.Errorf("another folder: %q, %v", other, err)
	}
	for _, left := range []string{"", "\x00\x00\x00"} { // as an earlier version left it, after a power cut
		if err := os.WriteFile(filepath.Join(dir, "name"), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		if fresh, err := spool.Name(disk); err != nil || len(fresh) != len(first) || fresh == first {
			t.Errorf("%q, %v", fresh, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := spool.Name(disk); err == nil {
		t.Error("no folder, and a name all the same")
	}
}

// A name that was told is the folder's after a power cut too, or a redaction would wait for a spool that nobody has any more. The power goes after each number of calls, in the process that makes the name
// and, if that died before it had told it, in the one that reads it.
func TestANameSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	told := 0
	for seed := range uint64(20) {
		for calls := range 20 {
			disk := newVolatile(seed, calls)
			name, err := spool.Name(disk)
			if err != nil {
				disk.left = calls // the process died, the disk goes on
				name, err = spool.Name(disk)
			}
			if err != nil && !errors.Is(err, errCut) {
				t.Fatal(err)
			}
			after, err2 := spool.Name(disk.cut(-1))
			if err2 != nil || len(after) < 20 || err == nil && after != name {
				t.Errorf("seed %d, %d calls: %q, %v; told was %q, %v", seed, calls, after, err2, name, err)
			}
			if err == nil {
				told++
			}
		}
	}
	if told == 0 {
		t.Error("no name was ever told")
	}
}
